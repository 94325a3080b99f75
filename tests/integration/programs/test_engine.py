"""The engine's thread: forks, interrupts, many callers, and the end of the process."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trio

import stripefs
from stripefs.api import engine as engines
from stripefs.errors import StoreError
from tests.integration.programs.test_cli_start import imported
from tests.support.python_api import MIB, content, names, python, spread
from tests.support.refusals import refused
from tests.unit.stripefs.api.conftest import place

__all__ = ["place"]

DATA = content(4 * MIB)


def test_it_is_one_thread_that_starts_when_it_is_needed() -> None:
    def count() -> int:
        return [thread.name for thread in threading.enumerate()].count("stripefs")

    assert count() == 0
    first = engines.engine()
    assert first is engines.engine()
    assert count() == 1
    engines.stop()
    engines.stop()
    assert count() == 0
    assert engines.engine() is not first


async def double(value: int) -> int:
    await trio.sleep(0)
    return 2 * value


def test_answers_and_errors_come_back() -> None:
    async def fail() -> None:
        raise StoreError("no")

    async def panic() -> None:
        raise BaseException("as a client written in Rust does")

    engine = engines.engine()
    assert engine.call(double, 4) == 8
    with pytest.raises(StoreError, match="no"):
        engine.call(fail)
    with pytest.raises(OSError, match="unexpectedly") as caught:
        engine.call(panic)
    assert caught.value.errno == errno.EIO
    assert engine.call(double, 5) == 10


def test_what_is_under_way_ends_with_it() -> None:
    engine = engines.engine()

    def wait() -> None:
        engine.call(trio.sleep_forever)

    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(wait) for _ in range(4)]
        while len(engine._calls) < 4:
            time.sleep(0.001)
        engines.stop()
        for call in calls:
            with refused(errno.ESHUTDOWN):
                call.result()
    with pytest.raises(OSError, match="stopped"):
        engine.call(trio.sleep_forever)


def test_an_interrupt_ends_a_call() -> None:
    ended = []

    async def sleep() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(True)

    def interrupt() -> None:
        while not engine._calls:
            time.sleep(0.001)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    engine = engines.engine()
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        engine.call(sleep)
    assert ended == [True]


def test_a_failed_engine_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    async def end_all() -> None:
        def fail() -> None:
            raise ValueError("a bug")

        trio.lowlevel.current_trio_token().run_sync_soon(fail)
        await trio.sleep_forever()

    first = engines.engine()
    with pytest.raises(OSError, match="engine"):
        first.call(end_all)
    first._thread.join()
    assert "please report this" in caplog.text
    assert engines.engine() is not first


WRITE_AND_READ = """
import sys, stripefs
url = sys.argv[1]
with stripefs.open(url + "/file", "wb") as file:
    file.write(b"x" * 3_000_000)
reading = stripefs.open(url + "/file")
assert reading.read(2_000_000)
writing = stripefs.open(url + "/other", "wb")
writing.write(b"y" * 20_000_000)
"""


def test_a_process_ends_with_files_open(place: Path) -> None:
    """And says which of them is not published; the lock of that is gone."""
    command = [sys.executable, "-c", WRITE_AND_READ, str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, f"{place}/other was never closed, so it is not published\n")
    assert names(place) == {"file"}


def test_a_process_ends_although_its_store_is_slow(place: Path) -> None:
    (place / "file").write_bytes(bytes(64 * MIB))
    done = python(
        """
import sys, stripefs, threading
file = stripefs.open(sys.argv[1])
file.read(100)
def read():
    try:
        file.read()
    except OSError:
        print("told")
threading.Thread(target=read).start()
while not stripefs.api.engine.engine()._calls:
    pass
""",
        spread(place, rate="1KB/s", burst="1MiB", **{"host-timeout": "3600s"}).replace("?", "/file?", 1),
    )
    assert done.stdout == "told\n"


def test_a_process_that_uses_nothing_starts_nothing() -> None:
    python("import stripefs.api, threading; assert threading.active_count() == 1")


def test_after_the_end_nothing_begins(place: Path) -> None:
    done = python(
        """
import atexit, sys, stripefs
def late():
    try:
        stripefs.open(sys.argv[1])
    except OSError as error:
        print(error.errno)
atexit.register(late)
stripefs.connect(sys.argv[1]).exists("x")
""",
        place,
    )
    assert done.stdout == f"{errno.ESHUTDOWN}\n"


FORKED = """
import multiprocessing, os, sys, threading, warnings
import stripefs
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, which Python 3.12 does not like
url = sys.argv[1]
fs = stripefs.connect(url)
data = bytes(range(256)) * 40_000
fs.write_bytes("file", data)
reading = fs.open("file")
assert reading.read(1000) == data[:1000]
writing = fs.open("other", "wb")
writing.write(data)
ours = [part.name for part in threading.enumerate()]

def work(number):
    assert threading.active_count() == 1, threading.enumerate()
    assert reading.read(1000) == data[1000:2000]
    assert reading.pread(offset=5_000_000 + number, length=10) == data[5_000_000 + number:][:10]
    assert fs.read_bytes("file") == data
    fs.write_bytes(f"child{number}", data)
    try:
        writing.write(b"z")
    except OSError as error:
        assert "another process" in str(error)
    else:
        raise AssertionError
    writing.close()

def parent():
    for _ in range(20):
        assert reading.pread(offset=7_000_000, length=10) == data[7_000_000:][:10]

threads = [threading.Thread(target=parent) for _ in range(4)]
for thread in threads:
    thread.start()
context = multiprocessing.get_context("fork")
children = [context.Process(target=work, args=(number,)) for number in range(4)]
for child in children:
    child.start()
for thread in threads:
    thread.join()
for child in children:
    child.join(60)
assert [child.exitcode for child in children] == [0] * 4, children
pid = os.fork()
if not pid:  # as programs do that know nothing of multiprocessing: it ends like any Python program
    assert fs.read_bytes("child3") == data
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
writing.close()
assert reading.read(1000) == data[1000:2000]
assert fs.read_bytes("other") == data
print(fs.listdir())
"""


@pytest.mark.parametrize("source", ["plain", "spread"])
def test_forked_processes_have_engines_of_their_own(place: Path, source: str) -> None:
    done = python(FORKED, spread(place) if source == "spread" else place)
    assert done.stdout == f"{['child0', 'child1', 'child2', 'child3', 'file', 'other']}\n"


def test_the_package_alone_is_light() -> None:
    assert {name for name in imported("-c", "import stripefs") if "." in name and "stripefs" in name} == set()
    assert imported("-c", "import stripefs").isdisjoint({"trio", "typing", "logging"})
    loaded = imported("-c", "import stripefs; stripefs.open")
    assert loaded.isdisjoint({"pyfuse3", "click", "hdfs_native", "pyarrow", "fsspec", "stripefs.vfs"})


def test_files_of_the_engine_are_let_go_of(place: Path) -> None:
    (place / "file").write_bytes(DATA)
    fs = stripefs.connect(str(place))
    for _ in range(3):
        assert fs.open("file").read() == DATA
    source = next(iter(next(iter(engines.engine().sources._services.values()))._sources.values()))
    while source._open:
        time.sleep(0.001)
