"""The block store against the bytes of its devices: reads, fetches ahead, restarts, crashes, damage, stores that are
away or answer what is wrong, and a disk that holds less than all.
"""

from __future__ import annotations

import queue
import random
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import trio
import trio.testing
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from imagefs.blocks.store import BlockDevice, BlockStore
from imagefs.errors import BlockUnavailable
from imagefs.format.index import BLOCK
from stripefs.errors import ServiceDown
from tests.support.examples import examples
from tests.support.images.devices import MIB, FakeSource, Made, make, noise, settled

_T = TypeVar("_T")

SHARED = noise(4)
DEVICES = [
    make([*SHARED, b"", b"text " * 9000, noise(1, seed=5)[0], b"end"], per_pack=3, size=7 * BLOCK + 4096),
    make([*noise(2, seed=6), *SHARED[1:], b"x"], per_pack=4),
]
NUMBERS = st.integers(0, len(DEVICES) - 1)
OFFSETS = st.integers(0, 8 * BLOCK)
LENGTHS = st.sampled_from([0, 1, 4096, BLOCK, 2 * BLOCK + 5, 8 * BLOCK])

FAST = 500.0
"""Seconds of the block store's clock in one of ours while a store is away, which is waited for."""


class Running:
    """A block store on a trio loop in a thread of its own."""

    def __init__(self, folder: Path, limit: int, sources: list[FakeSource]) -> None:
        self._ready: queue.Queue[trio.lowlevel.TrioToken] = queue.Queue()
        self._folder, self._limit, self._sources = folder, limit, sources
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._token = self._ready.get()

    def _run(self) -> None:
        self._clock = trio.testing.MockClock(rate=1.0)
        trio.run(self._main, clock=self._clock)

    async def _main(self) -> None:
        self.blocks = BlockStore(self._folder, limit=self._limit, memory=2 * MIB, io_timeout=30.0)
        self._over = trio.Event()
        async with trio.open_nursery() as nursery:
            await nursery.start(self.blocks.run)
            self.devices = [
                await self.blocks.open(one.digest, one.index, source)
                for one, source in zip(DEVICES, self._sources, strict=True)
            ]
            self._ready.put(trio.lowlevel.current_trio_token())
            await self._over.wait()
            nursery.cancel_scope.cancel()

    def do(self, call: Callable[[], Awaitable[_T]], *, rate: float = 1.0) -> _T:
        async def run() -> _T:
            self._clock.rate = rate
            try:
                return await call()
            finally:
                self._clock.rate = 1.0

        return trio.from_thread.run(run, trio_token=self._token)

    def stop(self) -> None:
        trio.from_thread.run_sync(self._over.set, trio_token=self._token)
        self._thread.join()


class Blocks(RuleBasedStateMachine):
    @initialize(limit=st.sampled_from([1 << 30, 6 * BLOCK]))
    def begin(self, limit: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="blocks-"))
        self.limit = limit
        self.chance = random.Random(1)
        self.sources = [FakeSource(one, fault=self.answer) for one in DEVICES]
        self.away = False
        self.wrong = 0
        self.restarts = 0
        self.kept: set[tuple[int, int]] = set()
        """Blocks, by device and number, that are on disk and need no store."""
        self.real = self.start()

    def start(self) -> Running:
        return Running(self.folder / f"blocks{self.restarts}", self.limit, self.sources)

    def answer(self, number: int, data: bytes) -> bytes:
        """Answers of the stores; the next `wrong` ones have other bytes than they should."""
        if self.away:
            raise ServiceDown("the store is away")
        if self.wrong and data:
            self.wrong -= 1
            at = self.chance.randrange(len(data))
            return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        return data

    @rule(number=NUMBERS, offset=OFFSETS, length=LENGTHS)
    def read(self, number: int, offset: int, length: int) -> None:
        made, device = DEVICES[number], self.device(number)
        wanted = made.content[offset : offset + length]
        asked = self.asked
        try:
            found = self.real.do(lambda: device.read(offset, length), rate=self.rate)
        except BlockUnavailable:
            assert self.away
            return
        assert bytes(found) == wanted
        blocks = {(number, block) for block in range(offset // BLOCK, -(-(offset + len(wanted)) // BLOCK))}
        if blocks <= self.kept:
            assert self.asked == asked, "a block that is on disk was fetched again"

    @rule(number=NUMBERS, first=st.integers(0, 7), count=st.integers(0, 8))
    def fetch_ahead(self, number: int, first: int, count: int) -> None:
        made, device = DEVICES[number], self.device(number)
        wanted = [block for block in range(first, first + count) if block < -(-len(made.content) // BLOCK)]
        report = self.real.do(lambda: device.fetch(wanted), rate=self.rate)
        assert report.failed == 0 or self.away or self.limit < 1 << 30

    @rule()
    def settle(self) -> None:
        """All that arrived is written; with a disk for everything it is kept from now on."""
        for device in self.real.devices:
            self.real.do(lambda device=device: settled(device, self.real.blocks))  # type: ignore[misc]
        if self.limit == 1 << 30:
            self.kept = {
                (number, block)
                for number, device in enumerate(self.real.devices)
                for block in range(-(-len(DEVICES[number].content) // BLOCK))
                if device.local is not None and self.there(DEVICES[number], device, block)
            }

    def there(self, made: Made, device: BlockDevice, block: int) -> bool:
        assert device.local is not None
        return made.index.place(block).length == 0 or device.local.table.checksum(block) is not None

    @rule(away=st.booleans(), wrong=st.integers(0, 2))
    def stores(self, away: bool, wrong: int) -> None:
        self.away, self.wrong = away, wrong

    @rule()
    def restart(self) -> None:
        self.real.stop()
        self.real = self.start()

    @rule()
    def crash(self) -> None:
        """The process is killed: what lies in the folder at this moment is all that is left."""
        old = self.folder / f"blocks{self.restarts}"
        self.restarts += 1
        shutil.copytree(old, self.folder / f"blocks{self.restarts}", ignore=shutil.ignore_patterns("lock"))
        self.real.stop()
        shutil.rmtree(old)
        self.kept = set()
        self.real = self.start()

    @rule(number=NUMBERS, at=st.floats(0, 1))
    def damage(self, number: int, at: float) -> None:
        """One byte of a device's file is flipped on disk."""
        path = self.device(number).path
        if path.exists() and (size := path.stat().st_size):
            with path.open("r+b") as file:
                file.seek(min(size - 1, int(at * size)))
                byte = file.read(1)
                file.seek(-1, 1)
                file.write(bytes([byte[0] ^ 1]))
            self.kept = set()

    @invariant()
    def nothing_is_left_under_way(self) -> None:
        if hasattr(self, "real"):
            assert self.real.blocks.snapshot()["memory"]["used"] <= 2 * MIB

    def teardown(self) -> None:
        if hasattr(self, "real"):
            self.away, self.wrong = False, 0
            try:
                for made, device in zip(DEVICES, self.real.devices, strict=True):
                    assert bytes(self.real.do(lambda device=device: device.read(0, device.size))) == made.content  # type: ignore[misc]
            finally:
                self.real.stop()
                shutil.rmtree(self.folder)

    def device(self, number: int) -> BlockDevice:
        return self.real.devices[number]

    @property
    def rate(self) -> float:
        return FAST if self.away else 1.0

    @property
    def asked(self) -> int:
        return sum(len(source.reads) for source in self.sources)


TestBlocks = Blocks.TestCase
TestBlocks.settings = examples(35, steps=25)
