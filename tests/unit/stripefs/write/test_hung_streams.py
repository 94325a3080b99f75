"""Clients and disks that hang: each costs its own file an error at the deadline, and nobody else anything."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from stripefs.background import Sampled
from stripefs.errors import ServiceDown, StoreError
from stripefs.store.base import Sink
from stripefs.store.local import LocalStore
from stripefs.vfs.writer_process import find_writer
from stripefs.write import Layout
from stripefs.write.staged_file import StagedFile
from stripefs.write.staging import Staging
from tests.support.uploads import MIB, content, load, save, writing
from tests.support.waiting import eventually

HUNG = 40


class HangingStore(LocalStore):
    """The sinks of paths in `hung` do not come back from `call` before `opened` is set."""

    def __init__(self, root: Path, call: str) -> None:
        super().__init__(bytes(root))
        self.call = call
        self.hung = True
        self.opened = threading.Event()
        self.begun: list[bytes] = []
        self.ended: list[bytes] = []

    def create(self, path: bytes, **how: object) -> Sink:
        sink: Sink = super().create(path, **how)  # type: ignore[arg-type]
        if self.hung:
            real = getattr(sink, self.call)

            def hang(*args: object) -> object:
                self.begun.append(path)
                assert self.opened.wait(60)
                self.ended.append(path)
                return real(*args)

            setattr(sink, self.call, hang)
        return sink


@pytest.fixture(params=["close", "write"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[HangingStore]:
    made = HangingStore(tmp_path, request.param)
    yield made
    made.opened.set()
    eventually(lambda: len(made.ended) == len(made.begun), "the hung calls to end")


async def test_forty_hung_files_hold_up_no_decision_and_no_other_file(store: HangingStore) -> None:
    failed = 0

    async def hang(number: int) -> None:
        nonlocal failed
        with pytest.raises(ServiceDown, match="no answer within 2 s"):
            await save(uploads, b"/hung-%d" % number, content(MIB))
        failed += 1

    async with writing(store, layout=Layout.PLAIN, io_timeout=2.0, memory=HUNG * 4 * MIB) as uploads:
        async with trio.open_nursery() as nursery:
            for number in range(HUNG):
                nursery.start_soon(hang, number)
            while len(store.begun) < HUNG:
                await trio.sleep(0.01)
            store.hung = False
            # As a FLUSH does it: who writes is looked for on threads that no sink can take.
            decisions = uploads._shared.ops.lane("decisions")
            opener = await decisions.run("looking", find_writer, threading.get_native_id())
            assert opener.pid
            await save(uploads, b"/good", content(MIB))
            assert failed < HUNG
        assert failed == HUNG
        store.opened.set()
    assert load(store, b"/good") == content(MIB)


# -- the local disk --------------------------------------------------------------------------------------------------


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    made = threading.Event()
    yield made
    made.set()


async def test_a_staging_disk_that_hangs_fails_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    monkeypatch.setattr("stripefs.write.staging.TIMEOUT", 0.05)
    monkeypatch.setattr("stripefs.write.staging.LAST", 0.05)
    staging = Staging(str(tmp_path), 64 * MIB, "/mnt")
    staged, other = await staging.new(b"f"), await staging.new(b"other")
    write = StagedFile.write
    hung = staged._file

    def hang(self: StagedFile, offset: int, data: bytes) -> None:
        if self is hung:
            gate.wait(60)
        write(self, offset, data)

    monkeypatch.setattr(StagedFile, "write", hang)
    with pytest.raises(StoreError, match="does not answer"):
        await staged.write(0, b"abc")
    with pytest.raises(StoreError, match="does not answer"):
        await staged.read(0, 1)
    await other.write(0, b"abc")
    assert await other.read(0, 3) == b"abc"
    await staged.close()
    gate.set()
    await other.close()
    eventually(lambda: staging.used == 0, "the file to be closed")
    staging.close()


async def test_a_staging_disk_that_hangs_makes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    monkeypatch.setattr("stripefs.write.staging.TIMEOUT", 0.05)
    staging = Staging(str(tmp_path), 64 * MIB, "/mnt")
    begin = staging._account.begin

    def hang() -> None:
        gate.wait(60)
        begin()

    monkeypatch.setattr(staging._account, "begin", hang)
    with pytest.raises(StoreError, match="does not answer"):
        await staging.new(b"f")
    gate.set()
    eventually(lambda: staging._account._files == 0 and staging._lane.busy == 0, "what came late to be closed")
    staging.close()


def test_figures_of_a_disk_that_hangs_are_the_last_known(gate: threading.Event) -> None:
    """An error reaches the caller."""
    answers: list[int] = [5, 6]
    gate.set()

    def look() -> int:
        gate.wait(60)
        if not answers:
            raise OSError("gone")
        return answers.pop(0)

    sampled = Sampled("size", look, 0)
    assert eventually(sampled.value, "the first answer") == 5
    gate.clear()
    assert [sampled.value() for _ in range(3)] == [5, 5, 5]
    gate.set()
    eventually(lambda: sampled.value() == 6, "the answer that was late")
    with pytest.raises(OSError, match="gone"):
        eventually(lambda: sampled.value() != 6, "the error")
