"""When a file that is written becomes visible: every way in which a descriptor is copied, closed, or dies."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.tools.mounts import Mounts, eventually

pytestmark = pytest.mark.mount


def _run(program: str, *arguments: object) -> str:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def test_copies_of_a_descriptor(mounts: Mounts) -> None:
    """Only the opener's last close publishes: not dup's, not a fork's, not a subprocess's."""
    mounted = mounts.mount(rw=True)
    m, s = mounted.path, mounts.source
    file = os.open(m / "f", os.O_CREAT | os.O_WRONLY)
    copy = os.dup(file)
    os.write(file, b"one")
    os.close(copy)
    assert not (s / "f").exists()
    if (child := os.fork()) == 0:
        os._exit(0)  # closes its copy
    assert os.waitpid(child, 0)[1] == 0
    assert not (s / "f").exists()
    subprocess.run(["sh", "-c", "printf two"], stdout=file, check=True)
    assert not (s / "f").exists()
    assert os.fstat(file).st_size == 6
    os.close(file)
    assert (s / "f").read_bytes() == (m / "f").read_bytes() == b"onetwo"

    _run(  # a child has the file, its opener lets go: visible when the opener closes, and the rest when the child does
        """
import os, sys
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
os.write(file, b"opener")
ready, go = os.pipe()
if os.fork() == 0:
    os.close(go)
    os.read(ready, 1)
    os.write(file, b", child")
    os.close(file)
    assert open(sys.argv[1], "rb").read() == b"opener, child"
    os._exit(0)
os.close(file)
assert open(sys.argv[1], "rb").read() == b"opener"
os.close(go)
assert os.wait()[1] == 0
""",
        m / "shared",
    )
    assert (s / "shared").read_bytes() == b"opener, child"
    assert mounted.stop() == 0


def test_programs_and_threads_that_do_not_close(mounts: Mounts) -> None:
    mounted = mounts.mount(rw=True)
    m, s = mounted.path, mounts.source
    _run("import os, sys; os.write(os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY), b'left open'); os._exit(0)", m / "l")
    assert (m / "l").read_bytes() == (s / "l").read_bytes() == b"left open"

    def in_a_thread() -> None:  # which is gone when its file is closed
        opened.append(os.open(m / "thread", os.O_CREAT | os.O_WRONLY))

    opened: list[int] = []
    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    os.write(opened[0], b"by a thread")
    os.close(os.dup(opened[0]))
    assert not (s / "thread").exists()
    os.close(opened[0])
    assert (s / "thread").read_bytes() == b"by a thread"
    assert mounted.stop() == 0


def test_close_and_replace_at_once(mounts: Mounts) -> None:
    mounted = mounts.mount(rw=True, attr_timeout=60.0)
    m, s = mounted.path, mounts.source
    for number in range(20):
        data = b"%d" % number * (1000 + number)
        with open(m / "draft", "wb") as file:
            file.write(data)
        assert (m / "draft").stat().st_size == len(data)
        os.replace(m / "draft", m / "final")
        assert (m / "final").stat().st_size == (s / "final").stat().st_size == len(data)
        assert (m / "final").read_bytes() == data
    for number in range(20):  # one name, opened again right after its close
        with open(m / "again", "wb" if number % 3 == 0 else "ab") as file:
            file.write(b"x")
        assert (m / "again").stat().st_size == number % 3 + 1
        assert (m / "again").read_bytes() == b"x" * (number % 3 + 1)
        os.mkdir(m / "saving")
        for part in range(3):
            (m / "saving" / f"part{part}").write_bytes(b"p" * number)
        os.rename(m / "saving", m / f"saved{number}")  # the kernel has not said yet that the files are closed
    assert len(list((s / "saved19").iterdir())) == 3
    assert {"again", "final"} < set(os.listdir(m))
    assert mounted.stop() == 0


_WRITER = """
import os, sys, time
parent = os.getpid()
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
if sys.argv[2] == "forked" and os.fork() == 0:
    os.setsid()
    while os.getppid() == parent: time.sleep(0.01)
    os.write(file, b"child")
    os._exit(0)
print(os.getpid(), flush=True)
block = b"new." * (1 << 16)
while True:
    os.write(file, block)
    if sys.argv[2] == "fsync":
        os.fsync(file)
    print("written", flush=True)
    if sys.argv[2] != "endless":
        time.sleep(1000)
"""


@pytest.mark.parametrize("how", ["endless", "fsync", "forked"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_writer_publishes_nothing(mounts: Mounts, how: str, number: signal.Signals) -> None:
    mounts.forgive("its writer was killed")
    mounted = mounts.mount(rw=True)
    m, s = mounted.path, mounts.source
    (s / "f").write_bytes(b"old")
    for name, before in (("f", b"old"), ("new", None)):
        with subprocess.Popen([sys.executable, "-c", _WRITER, m / name, how], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            for _ in range(2 if how != "endless" else 20):
                assert writer.stdout.readline()
            writer.send_signal(number)
            assert writer.wait(60) == -number
        eventually(lambda: mounted.status()["tree"]["open_for_writing"] == 0, "the end of the writing")
        assert ((m / name).read_bytes() if before is not None else (m / name).exists()) == (before or False)
        (m / name).write_bytes(b"next")  # its lock is released
        assert (s / name).read_bytes() == b"next"
    assert mounted.stop() == 0


def test_unmounted_while_a_file_is_written(mounts: Mounts) -> None:
    """Nothing of it is published, nothing hidden stays, and who mounts next can write at once."""
    mounts.forgive("was in use", "its writer was killed")
    mounted = mounts.mount(rw=True)
    (mounts.source / "f").write_bytes(b"old")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    files = [os.open(mounted.path / name, flags) for name in ("f", "new")]
    for file in files:
        os.write(file, b"half")
    assert mounted.stop() == 0
    for file in files:
        with contextlib.suppress(OSError):
            os.close(file)
    again = mounts.mount(rw=True)
    assert (again.path / "f").read_bytes() == b"old"
    for name in ("f", "new"):
        (again.path / name).write_bytes(b"next")
        assert (mounts.source / name).read_bytes() == b"next"
    eventually(lambda: again.status()["tree"]["open_for_writing"] == 0, "the end of all writing")
    assert sorted(os.listdir(mounts.source)) == ["f", "new"]
    assert again.stop() == 0
