"""A striped file, open: ranges of it are read from the parts that hold them, and nothing unverified is answered.

**Verified.** A part's table of checksums comes before its first bytes and must have the digest that the manifest
names. Each read is widened to whole checks (1 MiB; the chunks that the reader fetches are that already) and compared.
Bytes that do not fit are asked for once more, which may reach another replica, and then refused.

**Which version.** Parts never change, so an open handle reads its version as long as the parts are there. When one is
gone the manifest is looked at again: another one means StaleVersion, the same one a damaged file.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass

from stripefs.errors import (
    HostFailed,
    IsADirectory,
    NotADirectory,
    NotFound,
    StaleVersion,
    StoreError,
    Transient,
    Unsupported,
)
from stripefs.executor import Lane
from stripefs.format.manifest import CHECK, SUM, Manifest, Piece, check_sums, digest_of, table_length
from stripefs.store.base import Block, Buffer, Handle, Status, Store, Watch
from stripefs.store.common import InUse, PassedOn, check_range, exact
from stripefs.units import shown

__all__ = ["PartFiles", "StripedHandle"]

OPEN_PARTS = 128
"""Parts of one file that stay open: those of the 2 GiB whose places the reader asks for at once, in parts of 16 MiB."""


@dataclass(slots=True, eq=False)
class _Open:
    handle: Handle
    users: int = 0


class PartFiles:
    """The parts of one version, opened when they are needed.

    `pool` is the pool's path in `store`; `name` is what messages call the file.
    """

    def __init__(self, store: Store, pool: bytes, manifest: Manifest, name: str) -> None:
        self._store = store
        self._pool = pool
        self._manifest = manifest
        self.name = name
        self._lock = threading.Lock()
        self._open: dict[int, _Open] = {}
        """Least recently used first."""
        self._tables: dict[int, bytes] = {}
        self._closed = False

    def path(self, index: int) -> bytes:
        return self._manifest.parts[index].path(self._pool)

    @contextmanager
    def using(self, index: int) -> Iterator[Handle]:
        """The part, open. Raises what `Store.open` raises, and StoreError for a part of another length."""
        entry = self._taken(index)
        if entry is None:
            handle = self._opened(index)
            with self._lock:
                entry = _Open(handle) if self._closed else self._open.setdefault(index, _Open(handle))
                entry.users += 1
            if entry.handle is not handle:
                handle.close()
        try:
            yield entry.handle
        finally:
            self._release(entry)

    def _taken(self, index: int) -> _Open | None:
        with self._lock:
            entry = self._open.pop(index, None)
            if entry is not None:
                self._open[index] = entry
                entry.users += 1
            return entry

    def _opened(self, index: int) -> Handle:
        part = self._manifest.parts[index]
        try:
            handle = self._store.open_checked(self.path(index), part.length)
        except (IsADirectory, Unsupported) as error:  # not ours: another thing of its name is not followed or read
            raise StoreError(f"{self.name}: its part {shown(self.path(index))} is no file: {error.message}") from error
        if handle.status.length != part.length:
            handle.close()
            raise StoreError(
                f"{self.name}: its part {shown(self.path(index))} has {handle.status.length} bytes, not {part.length}"
            )
        return handle

    def _release(self, entry: _Open) -> None:
        with self._lock:
            entry.users -= 1
            # Nothing stays open that came while we were closed: by a caller that did not wait for what it had begun.
            excess = len(self._open) - OPEN_PARTS
            idle = [index for index, other in self._open.items() if not other.users] if excess > 0 else []
            gone = [self._open.pop(index) for index in idle[:excess]]
            if self._closed and not entry.users:
                gone.append(entry)
        for one in gone:
            one.handle.close()

    def has_table(self, index: int) -> bool:
        return index in self._tables

    def table(self, index: int, part: Handle, host: str, watch: Watch | None) -> bytes:
        """The verified table of a part. Threads that need it at once each fetch it: one may wait for a silent host."""
        table = self._tables.get(index)
        if table is None:
            begin = self._manifest.data_length(index)
            length = part.status.length - begin
            blocks = part.locate(begin, length)
            near = host if len(blocks) == 1 and host in blocks[0].hosts else ""
            quiet = None if watch is None else _Shifted(watch, 0, counts=False)
            read = exact(part.read(begin, length, host=near, watch=quiet), length, where=self.name, host=near)
            table = bytes(read)
            if digest_of(table) != self._manifest.parts[index].digest:
                raise _DamagedPart(f"{self.name}: the checksums of its part {shown(self.path(index))} are damaged")
            self._tables[index] = table
        return table

    def close(self) -> None:
        """Close what nobody uses now; the last user closes the rest."""
        with self._lock:
            self._closed = True
            idle = [entry for entry in self._open.values() if not entry.users]
            self._open.clear()
        for entry in idle:
            entry.handle.close()


class StripedHandle(Handle):
    """`current()` answers whether the manifest that was opened still stands. `opening` opens parts side by side,
    and `tables` fetches their checksums ahead: threads that wait for different hosts."""

    def __init__(
        self,
        status: Status,
        manifest: Manifest,
        parts: PartFiles,
        current: Callable[[], bool],
        opening: Executor | Lane,
        tables: Executor | Lane,
    ) -> None:
        self.status = status
        self.manifest = manifest
        self._name = parts.name
        self._parts = parts
        self._current = current
        self._opening = opening
        self._table_threads = tables
        self._in_use = InUse(self._name, parts.close)
        self._once: set[tuple[int, int]] = set()
        """(part, offset) of what did not fit its checksum once."""

    def locate(self, offset: int, length: int) -> Sequence[Block]:
        """One block for each unit: a range may not cross it, since the next unit lies in another part.

        A part that cannot be opened has no hosts; its bytes say why when they are read.
        """
        if length <= 0 or offset >= self.status.length:
            return ()
        with self._in_use.reading():
            first = next(self.manifest.pieces(max(0, offset), 1))
            end = min(self.status.length, offset + length)
            units = list(self.manifest.pieces(first.unit_offset, end - first.unit_offset))
            spans: dict[int, tuple[int, int]] = {}
            for unit in units:
                begin, _ = spans.get(unit.part, (unit.part_offset, 0))
                spans[unit.part] = (begin, unit.part_offset + unit.unit_length)
            asked = {index: self._opening.submit(self._located, index, *span) for index, span in spans.items()}
            try:
                blocks = {index: found.result() for index, found in asked.items()}
            finally:
                for found in asked.values():
                    found.cancel()
        self._prepare(spans)
        return [Block(unit.unit_offset, unit.unit_length, _hosts(blocks[unit.part], unit)) for unit in units]

    def _located(self, index: int, begin: int, end: int) -> Sequence[Block]:
        try:
            with self._parts.using(index) as part:
                return part.locate(begin, end - begin)
        except Transient:
            raise
        except StoreError:
            return ()

    def _prepare(self, parts: Iterable[int]) -> None:
        """Fetch the tables of parts that will be read, so that their first reads need not: one request less to wait for
        at every host whenever a segment begins."""
        with contextlib.suppress(RuntimeError):  # the store was closed
            for index in parts:
                if not self._parts.has_table(index):
                    self._table_threads.submit(self._fetch_table, index)

    def _fetch_table(self, index: int) -> None:
        with contextlib.suppress(StoreError), self._in_use.reading(), self._parts.using(index) as part:
            self._parts.table(index, part, "", None)

    def read(self, offset: int, length: int, *, host: str = "", watch: Watch | None = None) -> Buffer:
        return self.read_on(offset, length, 0, host=host, watch=watch)

    def read_on(self, offset: int, length: int, ahead: int, *, host: str = "", watch: Watch | None = None) -> Buffer:
        check_range(self.status, offset, length)
        with self._in_use.reading():
            got: list[Buffer] = []
            received = 0
            for piece in self.manifest.pieces(offset, length):
                shifted = None if watch is None else _Shifted(watch, received)
                got.append(self._read_piece(piece, ahead, host, shifted))
                received += piece.length
        return got[0] if len(got) == 1 else b"".join(got)

    def close(self) -> None:
        self._in_use.close()

    def _read_piece(self, piece: Piece, ahead: int, host: str, watch: Watch | None) -> Buffer:
        into = piece.offset - piece.unit_offset
        begin = into - into % CHECK
        end = min(piece.unit_length, -(-(into + piece.length) // CHECK) * CHECK)
        unit_at = piece.part_offset - into
        rest = self.manifest.data_length(piece.part) - (unit_at + end)
        goes_on = min(rest, ahead // self.manifest.width(piece.part))
        try:
            with self._parts.using(piece.part) as part:
                table = self._parts.table(piece.part, part, host, watch)
                data = exact(
                    part.read_on(unit_at + begin, end - begin, goes_on, host=host, watch=watch),
                    end - begin,
                    where=self._name,
                    host=host,
                )
                self._verify(piece.part, unit_at, begin, data, table)
        except (NotFound, NotADirectory, StaleVersion) as error:
            raise self._missing_error(piece.part, error) from error
        except _DamagedPart as error:
            key = (piece.part, unit_at + begin)
            if key in self._once:
                raise StoreError(error.message, hint="its bytes are not those that were written") from error
            self._once.add(key)
            raise HostFailed(error.message, host=host) from error
        return data if len(data) == piece.length else memoryview(data)[into - begin : into - begin + piece.length]

    def _verify(self, index: int, unit_at: int, begin: int, data: Buffer, table: bytes) -> None:
        at = table_length(unit_at, self.manifest.unit) + begin // CHECK * SUM
        sums = check_sums(data)
        if table[at : at + len(sums)] != sums:
            where = f"its part {shown(self._parts.path(index))} from byte {unit_at + begin} on"
            raise _DamagedPart(f"{self._name}: {where} does not fit its checksum")

    def _missing_error(self, index: int, error: StoreError) -> StoreError:
        if not self._current():
            return StaleVersion(f"{self._name} was replaced or deleted since it was opened")
        path, pool = shown(self._parts.path(index)), shown(self.manifest.pool)
        if isinstance(error, StaleVersion):
            return StoreError(f"{self._name}: its part {path} was changed")
        return StoreError(
            f"{self._name}: its part {path} is missing", hint=f"it was written with the pool {pool}; see --trust-pool"
        )


class _DamagedPart(StoreError):
    """Bytes or a table that do not fit; never leaves this module."""


class _Shifted(PassedOn):
    """The `Watch` of one of several reads that make up one: `before` bytes came already."""

    def __init__(self, watch: Watch, before: int, *, counts: bool = True) -> None:
        super().__init__(watch)
        self._before = before
        self._counts = counts

    def progress(self, received: int) -> None:
        self._watch.progress(self._before + received * self._counts)

    def served_by(self, host: str) -> None:
        """Says nothing of the whole read."""


def _hosts(blocks: Sequence[Block], unit: Piece) -> tuple[str, ...]:
    """The hosts that have all of a unit, in the order of its first block. `blocks` are in bytes of the part."""
    begin, end = unit.part_offset, unit.part_offset + unit.unit_length
    over = [block.hosts for block in blocks if block.offset < end and block.offset + block.length > begin]
    return tuple(host for host in over[0] if all(host in hosts for hosts in over)) if over else ()
