"""The process that fetches blocks, against a transfer port of a few lines: its faults, and those of its mount.

That its reads are those of `DataTransfer` is shown by test_data_transfer.
"""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from stripefs.errors import Abandoned
from stripefs.store import allocator
from stripefs.store.hdfs import fetch_process as module
from stripefs.store.hdfs.data_transfer import DataTransfer
from stripefs.store.hdfs.fetch_process import FetchProcess
from stripefs.store.hdfs.transfer_wire import BlockName, BlockRange
from tests.support.stores import RecordingWatch
from tests.support.waiting import eventually, gone
from tests.tools.fake_transfer import Talk, TransferPort, transfer_port
from tests.tools.fetching import fetch_process, request_for

DATA = random.Random(3).randbytes((9 << 20) + 5)
SIZE = 8 << 20


@pytest.fixture
def port() -> Iterator[TransferPort]:
    with transfer_port(DATA) as found:
        yield found


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[FetchProcess]:
    monkeypatch.setattr(module, "PAUSE", 0.05)
    with fetch_process() as found:
        yield found


def held_up(port: TransferPort) -> threading.Event:
    """Have the next request wait in the middle of its data. Set once it does."""
    held = threading.Event()

    def hold(talk: Talk) -> None:
        talk.grant()
        talk.sock.sendall(b"".join(talk.packets())[: 3 << 20])
        held.set()
        select.select([talk.sock], [], [], 30)  # the end of one that gives up

    port.manners.append(hold)
    return held


def pid_of(process: FetchProcess) -> int:
    pid = eventually(lambda: process.pid, "the process that fetches")
    assert pid is not None
    return pid


def meanwhile(act: Callable[[], None], held: threading.Event) -> threading.Thread:
    def run() -> None:
        assert held.wait(30)
        act()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_read_goes_on_here_when_the_process_dies(process: FetchProcess, port: TransferPort) -> None:
    held, first = held_up(port), pid_of(process)
    with closing(DataTransfer(process)) as transfer:
        killer = meanwhile(lambda: os.kill(first, signal.SIGKILL), held)
        piece = BlockRange(BlockName("pool", 5, 1001, len(DATA)), 7, SIZE)
        assert transfer.read(piece, port.address, "dn:1", None, 30.0) == DATA[7 : 7 + SIZE]
        killer.join()
        assert not process._buffers.used
        eventually(lambda: process.pid not in (None, first) and process._control, "another process")
        assert process.fetch(request_for(port.address, 1, SIZE), None) == DATA[1 : 1 + SIZE]


def test_a_cancelled_fetch_leaves_its_buffer_alone(process: FetchProcess, port: TransferPort) -> None:
    watch = RecordingWatch()
    canceller = meanwhile(watch.cancel, held_up(port))
    with pytest.raises(Abandoned):
        process.fetch(request_for(port.address, 0, SIZE), watch)
    canceller.join()
    assert not process._buffers.used
    answers = [process.fetch(request_for(port.address, at, SIZE), None) for at in range(4)]
    assert answers == [DATA[at : at + SIZE] for at in range(4)]


def test_a_fetch_that_was_cancelled_before_keeps_no_buffer(process: FetchProcess, port: TransferPort) -> None:
    watch = RecordingWatch(cancelled=True)
    with pytest.raises(Abandoned) as caught:
        process.fetch(request_for(port.address, 0, SIZE), watch)
    assert not process._buffers.used, "while its error is kept"
    del caught
    assert process.fetch(request_for(port.address, 1, SIZE), None) == DATA[1 : 1 + SIZE]


def test_progress_comes_from_the_process(process: FetchProcess, port: TransferPort) -> None:
    def with_a_pause(talk: Talk) -> None:
        data = b"".join(talk.packets())
        talk.grant()
        talk.sock.sendall(data[: 4 << 20])
        select.select([talk.sock], [], [], 4 * module.PROGRESS_EVERY)
        talk.sock.sendall(data[4 << 20 :])

    port.manners = [with_a_pause]
    watch = RecordingWatch()
    assert process.fetch(request_for(port.address, 0, SIZE), watch) == DATA[:SIZE]
    assert watch.received
    assert watch.received == sorted(watch.received)


def test_there_is_no_room(process: FetchProcess, port: TransferPort) -> None:
    assert process.fetch(request_for(port.address, 0, module.CAPACITY + 1), None) is None
    assert port.asked == []
    assert process.fetch(request_for(port.address, 0, SIZE), None) == DATA[:SIZE]


def test_short_reads_and_those_before_it_runs_stay_here(port: TransferPort) -> None:
    with closing(FetchProcess()) as process:
        assert process.fetch(request_for(port.address, 0, module.LEAST), None) is None
        eventually(lambda: process._control, "the process that fetches")
        assert process.fetch(request_for(port.address, 0, module.LEAST - 1), None) is None
        assert process.fetch(request_for(port.address, 0, module.LEAST), None) == DATA[: module.LEAST]


def test_one_that_hangs_is_killed_however_much_is_asked_of_it(
    process: FetchProcess, port: TransferPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pid_of(process)
    monkeypatch.setattr(module, "SILENT", 0.5)
    monkeypatch.setattr(module, "LOOK_EVERY", 0.02)
    os.kill(first, signal.SIGSTOP)
    # More requests than their socket takes messages.
    requests = [
        threading.Thread(target=process.fetch, args=(request_for(port.address, 0, 1), None)) for _ in range(400)
    ]
    for thread in requests:
        thread.start()
    for thread in requests:
        thread.join()
    eventually(lambda: gone(first), "the end of the process")
    eventually(lambda: process._control, "another process")


def test_no_threads_are_left(port: TransferPort, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with closing(FetchProcess(least=1)) as process:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            assert process.fetch(request_for(port.address, 0, SIZE), None) is None
        assert process.fetch(request_for(port.address, 0, SIZE), None) is None, "it starts"
        eventually(lambda: process._control, "the process that fetches")
        assert process.fetch(request_for(port.address, 0, SIZE), None) == DATA[:SIZE]


def test_another_version_is_refused(
    port: TransferPort, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "__version__", "0.0.1")
    with closing(FetchProcess(least=1)) as process:
        assert process.fetch(request_for(port.address, 0, SIZE), None) is None
        eventually(lambda: "it ended with status 1" in caplog.text, "the refusal")
        assert process.fetch(request_for(port.address, 0, SIZE), None) is None


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_it_ends_with_the_mount(stopped: bool) -> None:
    program = (
        "from tests.tools.fetching import fetch_process\nwith fetch_process() as process: print(process.pid); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as mount:
        assert mount.stdout is not None
        pid = int(mount.stdout.readline())
        if stopped:
            os.kill(pid, signal.SIGSTOP)
        mount.kill()
    eventually(lambda: gone(pid), "the end of the process")


def test_memory_stays_for_the_next_buffers_and_goes_when_all_are_free(
    process: FetchProcess, port: TransferPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocator, "KEPT", 2 << 20)
    monkeypatch.setattr(module, "LOOK_EVERY", 0.01)
    answers = [process.fetch(request_for(port.address, at, SIZE), None) for at in range(3)]
    assert process._buffers.resident >= 3 * SIZE
    del answers[1:]
    eventually(lambda: process._buffers.resident <= 2 * SIZE + (1 << 20), "the end of what is free beyond what is used")
    assert answers[0] == DATA[:SIZE]
    answers.clear()
    eventually(lambda: not process._buffers.resident, "the end of all memory")
