"""Where `throttled+` put the blocks of files that were written through it: one small document a file, kept beside them.

Files that were there before have none; their blocks lie where the seed says. A document stands in the folder
`/.stripefs-hosts` of the inner store, which nobody is shown, under the file's id, so that it goes with a file that is
moved, and every process sees the same. One that does not fit its file's length speaks of a file that is gone, and is
taken for none.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from stripefs.errors import NotFound, StoreError
from stripefs.format.blocks import Block
from stripefs.store.base import Status, Store

__all__ = ["FOLDER", "Layout", "Places", "cut"]

FOLDER = b".stripefs-hosts"
_PLACES = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """block_size in bytes is the one the file was made with; blocks are (length, hosts), in order."""

    block_size: int
    replication: int
    blocks: tuple[tuple[int, _PLACES], ...]

    def overlapping(self, offset: int, length: int) -> list[Block]:
        ends = itertools.accumulate(size for size, _ in self.blocks)
        blocks = [Block(end - size, size, hosts) for end, (size, hosts) in zip(ends, self.blocks, strict=True)]
        return [block for block in blocks if block.offset < offset + length and offset < block.offset + block.length]

    def to_bytes(self) -> bytes:
        return json.dumps([self.block_size, self.replication, self.blocks]).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Layout:
        """Raises ValueError, TypeError for anything but what `to_bytes` made."""
        block_size, replication, blocks = json.loads(data)
        return cls(int(block_size), int(replication), tuple((int(size), tuple(hosts)) for size, hosts in blocks))


class Places:
    """The documents of `store`. Safe to use from many threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, Layout] = {}
        self._lock = threading.Lock()

    def names(self) -> frozenset[bytes]:
        """Of all documents, as `of` wants them: one look for a whole listing."""
        try:
            return frozenset(
                itertools.chain.from_iterable(
                    (status.name for status in batch) for batch in self._store.scandir(b"/" + FOLDER)
                )
            )
        except NotFound:
            return frozenset()

    def of(self, status: Status, names: frozenset[bytes] | None = None) -> Layout | None:
        """That of the file `status`; `names` spares the look for files without one."""
        if not status.file_id or (names is not None and _name(status) not in names):
            return None
        with self._lock:
            layout = self._known.get(status.file_id)
        if layout is None or not _fits(layout, status):
            try:
                layout = Layout.from_bytes(bytes(self._store.get(_path(status))))
            except (StoreError, ValueError, TypeError):
                return None
            with self._lock:
                self._known[status.file_id] = layout
        return layout if _fits(layout, status) else None

    def put(self, status: Status, layout: Layout) -> None:
        self._store.put(_path(status), [layout.to_bytes()], replace=True)
        with self._lock:
            self._known[status.file_id] = layout

    def forget(self, status: Status | None) -> None:
        """The file is gone."""
        if status is None or not status.file_id:
            return
        with self._lock:
            self._known.pop(status.file_id, None)
        with contextlib.suppress(StoreError):
            self._store.remove(_path(status))


def cut(length: int, block_size: int, hosts: Sequence[_PLACES]) -> tuple[tuple[int, _PLACES], ...]:
    """A file of `length` bytes in blocks; hosts[i] hold block i."""
    return tuple(
        (min(block_size, length - start), places)
        for start, places in zip(range(0, length, block_size), hosts, strict=True)
    )


def _fits(layout: Layout, status: Status) -> bool:
    return sum(size for size, _ in layout.blocks) == status.length


def _name(status: Status) -> bytes:
    return status.file_id.replace(":", "-").replace("/", "-").encode()


def _path(status: Status) -> bytes:
    return b"/%b/%b" % (FOLDER, _name(status))
