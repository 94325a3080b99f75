"""Workers that die under a live mount: no read is lost, no file is closed, no entry is skipped. One that is
silent is replaced, and systemd hears of life all the while."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stripefs.fuse import kernel
from tests.support.refusals import refused
from tests.tools.installed_code import InstalledCode
from tests.tools.mounts import MIB, PATIENCE, REPLACED, Mounts, eventually, sha256, workers_of

SLOW = "?delay=20ms&on=read"

pytestmark = pytest.mark.mount


def _source_file(mounts: Mounts, size: int) -> Path:
    file = mounts.source / "data"
    file.write_bytes(random.Random(size).randbytes(size))
    return file


def test_kill_with_reads_in_flight(mounts: Mounts) -> None:
    """Reads that the killed worker had taken, and reads that nobody had taken, are all answered by the next one."""
    mounts.forgive(REPLACED)
    file = _source_file(mounts, 16 * MIB)
    data = file.read_bytes()
    mounted = mounts.mount(mounts.url("delayed+", "?delay=1s&on=read"))
    handle = os.open(mounted.path / "data", os.O_RDONLY | os.O_DIRECT)
    answered = mounted.status()["requests"]["answered"]
    with ThreadPoolExecutor(16) as pool:
        reads = [pool.submit(os.pread, handle, 4096, at) for at in range(0, 8 * MIB, MIB)]
        eventually(lambda: mounted.status()["reader"]["in_flight"], "reads under way")
        assert mounted.status()["requests"]["answered"] == answered
        mounted.kill_worker()
        reads += [pool.submit(os.pread, handle, 4096, at) for at in range(8 * MIB, 16 * MIB, MIB)]
        answers = [read.result(PATIENCE) for read in reads]
    os.close(handle)
    assert answers == [data[at : at + 4096] for at in range(0, 16 * MIB, MIB)]


@pytest.mark.slow
def test_replacing_under_readers_never_mixes(mounts: Mounts) -> None:
    """Versions of equal length, swapped while eight readers open, read and map: each sees one version or an error."""
    size = 2 * MIB
    file = mounts.source / "data"

    def put(letter: bytes) -> None:
        (mounts.source / "draft").write_bytes(letter * size)
        (mounts.source / "draft").rename(file)

    put(b"0")
    mounted = mounts.mount(attr_timeout=0.02)
    shown = mounted.path / "data"
    done = threading.Event()
    mixed: list[object] = []
    seen: set[int] = set()

    def use(mapped: bool) -> None:
        while not done.is_set():
            try:
                with open(shown, "rb", buffering=0) as opened:
                    if mapped:
                        opened.read(1)  # a fault that fails would be SIGBUS: leave faults to what was just read
                    data = opened.read()
            except OSError as error:
                if error.errno not in (errno.ESTALE, errno.EIO):
                    mixed.append(error)
                continue
            if len(set(data)) != 1:
                mixed.append(sorted(set(data)))
            seen.update(data[:1])

    threads = [threading.Thread(target=use, args=(number % 2 == 0,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for letter in b"abcdefghijklmnop":
        put(bytes([letter]))
        time.sleep(0.1)
    done.set()
    for thread in threads:
        thread.join()
    assert not mixed
    assert len(seen) > 3


@pytest.mark.root
def test_three_deaths_without_an_answer_end_the_connection(mounts: Mounts) -> None:
    mounts.forgive(REPLACED, "died within")
    mounted = mounts.mount()
    os.kill(mounted.worker(), signal.SIGKILL)
    for _ in range(2):
        eventually(lambda: mounted.status()["generation"], "a worker")
        mounted.kill_worker()
    assert mounted.process.wait(PATIENCE) == 32
    with refused(errno.ENOTCONN):
        os.listdir(mounted.path)
    assert "umount -l" in mounted.log_text()


def test_a_death_that_was_wanted_is_none_of_three(mounts: Mounts) -> None:
    mounts.forgive(REPLACED)
    (mounts.source / "file").write_bytes(b"content")
    mounted = mounts.mount()
    os.kill(mounted.process.pid, signal.SIGHUP)
    for generation in (2, 3):
        eventually(lambda wanted=generation: mounted.status()["generation"] == wanted, "a worker")  # type: ignore[misc]
        mounted.kill_worker()
    assert (mounted.path / "file").read_bytes() == b"content"
    assert mounted.stop() == 0


def test_forced_fallback_mounts_anew(mounts: Mounts) -> None:
    """Without FUSE_NOTIFY_RESEND open files fail, calls in flight fail, and the mountpoint serves again."""
    mounts.forgive("this kernel cannot hand over")
    file = _source_file(mounts, 4 * MIB)
    mounted = mounts.mount(mounts.url("delayed+", SLOW), resend=False)
    shown = mounted.path / "data"
    assert not mounted.status()["resend"]
    handle = os.open(shown, os.O_RDONLY)
    assert len(os.pread(handle, 4096, 0)) == 4096
    for _ in range(3):
        mounted.kill_worker()
        eventually(lambda: mounted.in_table() and _readable(shown), "the new mount")
        assert sha256(shown) == sha256(file)
    with pytest.raises(OSError):  # noqa: PT011  ENOTCONN, ECONNABORTED or EIO, as the kernel likes
        os.pread(handle, 4096, 3 * MIB)
    with contextlib.suppress(OSError):  # closed all the same
        os.close(handle)
    assert len([mount for mount in kernel.mounts() if mount.path == str(mounted.path)]) == 1
    assert mounted.stop() == 0


def _readable(path: Path) -> bool:
    """True if the file can be read now, and holds something."""
    try:
        return bool(path.read_bytes())
    except OSError:
        return False


# -- systemd


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket on which a service that is started now reports its state, once in half a second."""
    path = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        listener.settimeout(PATIENCE)
        yield listener


def test_a_stopped_worker_is_replaced_and_systemd_hears_of_life_all_the_while(
    systemd: socket.socket, mounts: Mounts
) -> None:
    mounts.forgive(REPLACED, "does not answer any more")
    (mounts.source / "file").write_bytes(b"content")
    mounted = mounts.mount(mounts.url())
    first = mounted.worker()
    for _ in range(5):
        assert systemd.recv(64) == b"WATCHDOG=1"
    assert mounted.worker() == first  # which answers
    os.kill(first, signal.SIGSTOP)
    eventually(lambda: first not in workers_of(str(mounted.path)), "the end of the stopped worker")
    assert (mounted.path / "file").read_bytes() == b"content"
    assert systemd.recv(64) == b"WATCHDOG=1"
    assert mounted.status()["restarts"] == 1


def test_a_worker_is_not_taken_for_silent_while_the_next_one_is_loaded(
    systemd: socket.socket, mounts: Mounts, code: InstalledCode
) -> None:
    mounts.forgive("the worker stays")
    mounted = mounts.mount()
    (code.folder / "stripefs" / "vfs" / "__init__.py").write_text("import time; time.sleep(3); raise ImportError\n")
    os.kill(mounted.process.pid, signal.SIGHUP)
    while "the worker stays" not in mounted.log_text():
        assert systemd.recv(64) == b"WATCHDOG=1"
    for _ in range(3):
        assert systemd.recv(64) == b"WATCHDOG=1"
    assert mounted.status()["generation"] == 1
    assert mounted.stop() == 0
