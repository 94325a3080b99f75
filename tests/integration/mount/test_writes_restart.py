"""Workers that die under who writes: an error at the latest from close, the old version intact, all else goes on."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.refusals import errno_of
from tests.tools.installed_code import InstalledCode
from tests.tools.mounts import MIB, PATIENCE, REPLACED, Mounts, drop_cache, eventually

pytestmark = pytest.mark.mount


def test_open_writers_are_told(mounts: Mounts) -> None:
    mounts.forgive(REPLACED, "was being written when the worker ended")
    mounted = mounts.mount(rw=True)
    m, s = mounted.path, mounts.source
    (s / "f").write_bytes(b"old")
    (s / "read").write_bytes(b"r" * MIB)
    (m / "clean").write_bytes(b"clean")
    reader = os.open(m / "read", os.O_RDONLY)
    writers = [os.open(m / name, os.O_WRONLY | os.O_TRUNC | os.O_CREAT) for name in ("f", "new")]
    append = os.open(m / "clean", os.O_WRONLY | os.O_APPEND)
    for writer in writers:
        os.write(writer, b"w" * MIB)
    os.fsync(writers[0])
    mounted.kill_worker()
    for writer in writers:
        assert errno_of(os.write, writer, b"x") == errno.EIO
        assert errno_of(os.fsync, writer) == errno.EIO
        assert os.fstat(writer).st_size in (0, MIB)
        assert errno_of(os.close, writer) == errno.EIO
    assert errno_of(os.close, append) == errno.EIO  # that nothing was written through it is not known any more
    assert os.pread(reader, MIB, 0) == b"r" * MIB
    os.close(reader)
    assert (m / "f").read_bytes() == (s / "f").read_bytes() == b"old"
    assert not (m / "new").exists()
    for name in ("f", "new", "clean"):  # at once: the locks were those of this mount
        with open(m / name, "wb") as file:
            file.write(b"again")
        assert (m / name).read_bytes() == (s / name).read_bytes() == b"again"
    eventually(lambda: mounted.status()["tree"]["open_files"] == 0, "the end of all handles")
    assert mounted.status()["tree"]["open_for_writing"] == 0
    assert mounted.stop() == 0


def test_an_upgrade_waits_for_writers(mounts: Mounts) -> None:
    """And no open file is lost; a second SIGHUP does not wait."""
    mounts.forgive(REPLACED, "was being written when the worker ended")
    mounted = mounts.mount(rw=True)
    m, s = mounted.path, mounts.source
    (m / "read").write_bytes(b"r" * MIB)
    reader = os.open(m / "read", os.O_RDONLY)
    writer = os.open(m / "long", os.O_WRONLY | os.O_CREAT)
    os.write(writer, b"1" * MIB)
    os.kill(mounted.process.pid, signal.SIGHUP)
    eventually(lambda: "the next worker waits" in mounted.log_text(), "the worker to wait")
    assert (m / "read").read_bytes() == b"r" * MIB
    os.write(writer, b"2" * MIB)
    os.close(writer)
    eventually(lambda: mounted.status()["generation"] == 2, "the next worker")
    drop_cache(m / "read")
    assert os.pread(reader, MIB, 0) == b"r" * MIB
    os.close(reader)
    assert (m / "long").read_bytes() == (s / "long").read_bytes() == b"1" * MIB + b"2" * MIB

    writer = os.open(m / "lost", os.O_WRONLY | os.O_CREAT)
    os.write(writer, b"3" * MIB)
    os.kill(mounted.process.pid, signal.SIGHUP)
    eventually(lambda: mounted.log_text().count("the next worker waits") == 2, "the second worker to wait")
    os.kill(mounted.process.pid, signal.SIGHUP)
    eventually(lambda: mounted.status()["generation"] == 3, "the next worker")
    assert errno_of(os.close, writer) == errno.EIO
    assert mounted.stop() == 0


def test_a_worker_stays_while_the_next_one_cannot_be_loaded(mounts: Mounts, code: InstalledCode) -> None:
    """A SIGHUP in the middle of an upgrade, whose files are not all there, is refused; a later one is not."""
    mounts.forgive("the worker stays")
    mounted = mounts.mount(rw=True)
    assert mounted.status()["version"] == "0.2.0+first"
    writer = os.open(mounted.path / "f", os.O_WRONLY | os.O_CREAT)
    os.write(writer, b"1" * MIB)
    shutil.rmtree(code.folder / "stripefs" / "write")  # which a mount for reading does without
    for number in (1, 2):
        os.kill(mounted.process.pid, signal.SIGHUP)
        eventually(lambda times=number: mounted.log_text().count("the worker stays") == times, "the refusal")  # type: ignore[misc]
    assert "No module named 'stripefs.write" in mounted.log_text()
    os.write(writer, b"2" * MIB)
    os.close(writer)
    code.install_checkout("0.2.0+second")
    os.kill(mounted.process.pid, signal.SIGHUP)
    eventually(lambda: mounted.status()["version"] == "0.2.0+second", "the next worker")
    assert mounted.status()["generation"] == 2
    assert (mounted.path / "f").read_bytes() == b"1" * MIB + b"2" * MIB
    assert mounted.stop() == 0


def test_callers_wait_while_the_next_worker_cannot_be_loaded(mounts: Mounts, code: InstalledCode) -> None:
    """The last writer closes in the middle of an upgrade that began after the SIGHUP."""
    mounts.forgive("requests wait", "the worker ended with", "Traceback")
    mounted = mounts.mount(rw=True)
    (mounted.path / "read").write_bytes(b"r" * MIB)
    writer = os.open(mounted.path / "f", os.O_WRONLY | os.O_CREAT)
    os.write(writer, b"1" * MIB)
    os.kill(mounted.process.pid, signal.SIGHUP)
    eventually(lambda: "the next worker waits" in mounted.log_text(), "the worker to wait")
    shutil.rmtree(code.folder / "stripefs" / "vfs")
    os.close(writer)
    eventually(lambda: "requests wait" in mounted.log_text(), "the supervisor to wait")
    with ThreadPoolExecutor() as pool:
        read = pool.submit(Path.read_bytes, mounted.path / "read")
        time.sleep(2.5)  # in which three workers would die
        assert not read.done()
        code.install_checkout("0.2.0+second")
        assert read.result(PATIENCE) == b"r" * MIB
    assert mounted.status()["version"] == "0.2.0+second"
    assert (mounted.path / "f").read_bytes() == b"1" * MIB
    shutil.rmtree(code.folder / "stripefs" / "vfs")
    mounted.kill_worker()
    eventually(lambda: mounted.log_text().count("requests wait") == 2, "the supervisor to wait")
    assert mounted.stop() == 0


@pytest.mark.slow
def test_changes_of_names_are_carried_on(mounts: Mounts) -> None:
    """Killed when the change was made and not answered."""
    mounts.forgive(REPLACED)
    mounted = mounts.mount(mounts.url("delayed+", "?delay=1s&on=stat"), rw=True)
    made = mounts.source / "made"

    def kill() -> None:
        eventually(made.exists, "the directory")
        mounted.kill_worker()

    killer = threading.Thread(target=kill)
    killer.start()
    os.mkdir(mounted.path / "made")
    killer.join()
    assert mounted.status()["restarts"] == 1
    assert mounted.stop() == 0
