"""Compaction of the journal: the state is carried into a new generation of it, some inodes with each commit.

A generation begins with the state as it stood at one commit, then come all changes since. Compaction takes these steps:

    begin    a commit finds the journal full: the state as it is now is what the new generation begins with
    carry    each commit carries the next SLICE inodes; one that is about to change is carried before, as it was
    finish   when all are carried, each commit copies changes made since the beginning, until none is left; then the
             new generation counts, by one store into memory

The old generation takes all changes until then. So a worker may die at any instruction: the next one reads either the
old generation, which is whole, or the new one, and both tell the same state. No step handles more than SLICE inodes and
those that the commit itself has changed, with the directories above them. Open handles are listed at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Protocol

from stripefs.tree.records import (
    ROOT,
    DirectoryHandle,
    FileHandle,
    Node,
    pack_cookie,
    pack_directory,
    pack_file,
    pack_intent,
    pack_node,
)

__all__ = ["SLICE", "Compaction", "Journal", "NoJournal"]

SLICE = 256
"""Inodes that one commit carries: a millisecond."""


class Journal(Protocol):
    """Where records are kept for the next worker."""

    def append(self, payload: bytes) -> None:
        """Keep `payload`: wholly or, when this process dies meanwhile, not at all."""

    def full(self) -> bool:
        """True when a new generation would pay."""

    def begin(self) -> None:
        """A new, empty generation; one that was begun and not finished is dropped."""

    def carry(self, payload: bytes) -> None:
        """Add `payload` to the new generation, which does not count yet."""

    def finish(self) -> bool:
        """Copy to the new generation a bounded number of bytes of what was appended since `begin`; whether that was
        all, and the new generation counts."""


class NoJournal:
    """Keeps nothing: for a tree that no other process carries on."""

    def append(self, payload: bytes) -> None:
        pass

    def full(self) -> bool:
        return False

    def begin(self) -> None:
        pass

    def carry(self, payload: bytes) -> None:
        pass

    def finish(self) -> bool:
        return True


class Compaction:
    """Made by `State` of its own tables, and told of each change before it is made."""

    def __init__(
        self,
        journal: Journal,
        nodes: dict[int, Node],
        current: dict[tuple[int, bytes], int],
        files: dict[int, FileHandle],
        directories: dict[int, DirectoryHandle],
        intents: dict[int, bytes],
    ) -> None:
        self._journal = journal
        self._nodes, self._current = nodes, current
        self._files, self._directories, self._intents = files, directories, intents
        self._generation = 0  # of all nodes that are carried, or are newer than what is carried
        self._order: list[int] = []  # each node of this generation, and some that are gone
        self._walk: Iterator[None] | None = None
        self._carried = bytearray()

    def add(self, node: Node) -> None:
        """A new node: what records it is a change."""
        node.generation = self._generation
        self._order.append(node.id)

    def keep(self, node: Node) -> None:
        """`node` is about to change or to go: it is carried as it is, behind the directories above it."""
        chain = []
        while node.generation != self._generation and node.id != ROOT:
            chain.append(node)
            node = self._nodes[node.parent]
        for each in reversed(chain):
            self.add(each)
            current = self._current.get((each.parent, each.name)) == each.id
            self._carried += pack_node(each, current=current)

    def step(self) -> None:
        """One step, if there is one to make. For right after a commit, while no change is pending.

        Raises what the journal raises; the next call goes on.
        """
        if self._walk is None:
            if not self._journal.full() and len(self._order) <= 2 * len(self._nodes) + SLICE:
                return
            self._journal.begin()
            self._walk = self._slices()
        walked = next(self._walk, self) is self
        if self._carried:
            self._journal.carry(bytes(self._carried))
            self._carried.clear()
        elif walked and self._journal.finish():
            self._walk = None

    def _slices(self) -> Iterator[None]:
        """Puts what is to be carried into `_carried`; yields after each slice."""
        order, self._order = self._order, []
        self._generation += 1
        handles = self._handles(
            list(self._files.items()),
            [(handle, held.node, held.names, len(held.names)) for handle, held in self._directories.items()],
            list(self._intents.items()),
        )
        for start in range(0, len(order), SLICE):
            for node_id in order[start : start + SLICE]:
                if (node := self._nodes.get(node_id)) is not None:
                    self.keep(node)
            yield
        while records := b"".join(itertools.islice(handles, SLICE)):
            self._carried += records
            yield

    @staticmethod
    def _handles(
        files: list[tuple[int, FileHandle]],
        directories: list[tuple[int, int, list[bytes], int]],
        intents: list[tuple[int, bytes]],
    ) -> Iterator[bytes]:
        for handle, file in files:
            yield pack_file(handle, file)
        for handle, node, names, count in directories:
            yield pack_directory(handle, node)
            for name in itertools.islice(names, count):  # they only ever grow
                yield pack_cookie(handle, name)
        for number, key in intents:
            yield pack_intent(number, key)
