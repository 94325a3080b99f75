"""Records of many fsyncs: few bytes in all, few documents to read, and a chain that is whole wherever a writer dies."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import trio
from hypothesis import given
from hypothesis import strategies as st

from stripefs.errors import Transient
from stripefs.format.lock_and_record import Record, RecordLink, RecordPart, RecordSegment
from stripefs.format.reserved_names import parse_reserved
from stripefs.gc.store_reads import read_chain
from stripefs.write.commit_documents import Durable, RecordLog
from stripefs.write.upload_names import UploadNames
from tests.support.examples import examples


class Disk:
    """Files by path, with the calls that a log makes. Each change is told to `look`.

    lost: what the next rename does, its answer being lost: "now", "never" or "later", which is when `arrive` is called.
    """

    def __init__(self, look: Callable[[], None] = lambda: None) -> None:
        self.files: dict[bytes, bytes] = {}
        self.taken = 0
        self.lost = ""
        self._later: list[tuple[bytes, bytes]] = []
        self._look = look
        self._prepared: bytes | None = None

    def begin(self, document: bytes) -> None:
        self._prepared = document

    async def drop(self, but: bytes | None = None) -> list[bytes]:
        if self._prepared != but:
            self._prepared = None
        return []

    async def take(self, document: bytes) -> bytes:
        self._prepared = None
        self.taken += 1
        path = b"/part%d" % self.taken
        self.files[path] = document
        self._look()
        return path

    async def rename_over(self, source: bytes, target: bytes, length: int) -> None:
        assert len(self.files[source]) == length
        lost, self.lost = self.lost, ""
        if lost == "later":
            self._later.append((source, target))
        elif lost != "never":
            self.files[target] = self.files.pop(source)
        self._look()
        if lost:
            raise Transient("the answer was lost")

    def arrive(self) -> None:
        for source, target in self._later:
            if source in self.files:
                self.files[target] = self.files.pop(source)
                self._look()
        self._later = []

    def clear(self, paths: Sequence[bytes]) -> None:
        for path in paths:
            self.files.pop(path, None)
            self._look()

    def get(self, path: bytes) -> bytes:
        return self.files[path]

    def records(self) -> dict[int, bytes]:
        found = {path: parse_reserved(path[1:]) for path in self.files}
        return {meaning.number: path for path, meaning in found.items() if meaning and meaning.kind == "record"}

    def durable(self) -> tuple[RecordSegment, ...]:
        """The records that recovery would find here."""
        pieces = self.records()
        return read_chain(self, pieces)[0].segments if pieces else ()  # type: ignore[arg-type]


def segment(number: int) -> RecordSegment:
    return RecordSegment(1 << 20, (RecordPart(b"/.stripefs/0123456789abcdef/%d" % number, 1 << 20, "0" * 32),))


def saying(names: UploadNames, segments: list[RecordSegment], key: object) -> Durable:
    def record(start: int, after: RecordLink | None) -> Record:
        return Record(names.path, names.version, "striped", 65536, tuple(segments[start:]), after=after)

    return Durable(len(segments), key, record)  # type: ignore[arg-type]


@examples(150)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["write"] * 5 + ["lose", "arrive", "rearrange", "prepare"]),
            st.integers(1, 3),
            st.sampled_from(["now", "never", "later"]),
        ),
        max_size=40,
    )
)
def test_whoever_dies_leaves_what_the_last_fsync_promised(steps: list[tuple[str, int, str]]) -> None:
    allowed: list[tuple[RecordSegment, ...]] = [()]

    def look() -> None:
        assert disk.durable() in allowed

    async def run() -> None:
        names = UploadNames(b"/file")
        log = RecordLog(disk, names, disk)  # type: ignore[arg-type]
        segments: list[RecordSegment] = []
        made = generation = 0
        for step, count, lost in steps:
            if step == "arrive":
                disk.arrive()
                continue
            if step == "rearrange" and segments:  # the same bytes, in one other object
                generation += 1
                segments = []
            segments = segments + [segment(made + number) for number in range(count)]
            made += count
            durable = saying(names, segments, generation)
            if step == "prepare":
                await log.prepare(durable)
                continue
            allowed.append(tuple(segments))
            disk.lost = lost if step == "lose" else ""
            with contextlib.suppress(Transient):
                await log.write(durable)
                disk.arrive()  # the last moment for it
                disk.clear(log.outdated)
                log.outdated = []
                del allowed[:-1]
                look()
        del allowed[:-1]
        allowed.extend(allowed[0][:count] for count in range(len(allowed[0]) + 1))
        before = len(disk.durable())
        log.forget()
        for path in log.outdated:  # the rest of the log is a chain
            disk.clear([path])
            assert len(disk.durable()) <= before

    disk = Disk(look)
    trio.run(run)
