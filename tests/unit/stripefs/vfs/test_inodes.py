"""The state that workers hand on, against a model in plain dictionaries; and its records, cut off anywhere."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from stripefs.fuse.state_memory import parse
from stripefs.store.base import Identity, Kind, Status
from stripefs.vfs import journal
from stripefs.vfs.inodes import ROOT, InodeTable
from tests.golden.journals import DOCUMENTS, FOLDER, change_inodes
from tests.support.examples import examples
from tests.unit.stripefs.vfs.world import Kept, recovered

NAMES = st.sampled_from([b"a", b"b", b"x" * 255]) | st.binary(min_size=1, max_size=8).filter(
    lambda name: b"/" not in name and b"\0" not in name
)
IDENTITIES = st.sampled_from([Identity(1, 2, "a"), Identity(1, 2, "b")]) | st.builds(
    Identity, st.integers(0, 2**63 - 1), st.integers(-(2**63), 2**63 - 1), st.sampled_from(["", "a", "17:4711", "ä"])
)
STATUSES = st.builds(
    Status,
    name=NAMES,
    kind=st.just(Kind.FILE),
    length=st.integers(0, 2**63 - 1),
    mtime_ns=st.integers(-(2**63), 2**63 - 1),
    atime_ns=st.integers(-(2**63), 2**63 - 1),
    mode=st.integers(0, 0o7777),
    owner=st.sampled_from(["", "alice", "1000", "\udcff"]),
    group=st.sampled_from(["", "staff"]),
    file_id=st.sampled_from(["", "9"]),
    block_size=st.integers(0, 2**40),
    replication=st.integers(0, 512),
    links=st.integers(0, 2**32 - 1),
)


def facts(state: InodeTable) -> dict[str, Any]:
    return {
        "nodes": {
            node.id: (node.parent, node.name, node.kind, node.identity, node.lookups, node.children, node.handles)
            for node in state.nodes.values()
        },
        "current": state.current,
        "files": {handle: (file.node, file.status) for handle, file in state.files.items()},
        "directories": {handle: (held.node, held.names) for handle, held in state.directories.items()},
    }


@pytest.fixture(autouse=True)
def slices_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SLICE", 2)


class Machine(RuleBasedStateMachine):
    """Calls of the kernel, in any order; the model counts by hand what the state should hold."""

    directories = Bundle("directories")
    files = Bundle("files")
    handles = Bundle("handles")
    listings = Bundle("listings")

    def __init__(self) -> None:
        super().__init__()
        self.kept = Kept(compact_every=7)
        self.state = InodeTable(self.kept)
        self.lookups: dict[int, int] = {ROOT: 1}
        self.held: dict[int, int] = {}  # handle → node
        self.ids: dict[object, int] = {}  # of each version that was ever looked up

    def alive(self, node: int) -> bool:
        return node in self.state.nodes

    @rule(target=directories)
    def root(self) -> int:
        return ROOT

    @rule(target=directories, parent=directories, name=NAMES)
    def look_up_directory(self, parent: int, name: bytes) -> Any:
        return self._look_up(parent, name, Kind.DIRECTORY, None)

    @rule(target=files, parent=directories, name=NAMES, identity=IDENTITIES)
    def look_up_file(self, parent: int, name: bytes, identity: Identity) -> Any:
        return self._look_up(parent, name, Kind.FILE, identity)

    def _look_up(self, parent: int, name: bytes, kind: Kind, identity: Identity | None) -> Any:
        if not self.alive(parent):
            return multiple()
        expected = self.state.id_of(parent, name, kind, identity)
        node = self.state.add_lookup(parent, name, kind, identity)
        assert node.id == expected
        assert self.state.is_current(node)
        assert self.ids.setdefault((parent, name, kind, identity), node.id) == node.id
        assert list(self.ids.values()).count(node.id) == 1
        self.lookups[node.id] = self.lookups.get(node.id, 0) + 1
        return node.id

    @rule(node=files | directories, count=st.integers(1, 5))
    def forget(self, node: int, count: int) -> None:
        if self.lookups.get(node, 0) >= count and node != ROOT:  # the kernel never forgets more than it looked up
            self.lookups[node] -= count
            self.state.forget(node, count)

    @rule(target=handles, node=files, status=STATUSES)
    def open(self, node: int, status: Status) -> Any:
        if not self.lookups.get(node):
            return multiple()
        handle = self.state.open_file(node, status)
        assert handle not in self.held
        self.held[handle] = node
        return handle

    @rule(target=listings, node=directories)
    def opendir(self, node: int) -> Any:
        if not self.lookups.get(node):
            return multiple()
        handle = self.state.open_directory(node)
        self.held[handle] = node
        return handle

    @rule(handle=listings, name=NAMES)
    def list_one(self, handle: int, name: bytes) -> None:
        if handle in self.held:
            cookie = self.state.add_cookie(handle, name)
            assert self.state.directories[handle].names[cookie - 1] == name

    @rule(handle=consumes(handles) | consumes(listings))
    def release(self, handle: int) -> None:
        assert (self.state.release(handle) is not None) == (self.held.pop(handle, None) is not None)

    @rule()
    def commit(self) -> None:
        self.state.commit()

    @rule()
    def die(self) -> None:
        """The next worker starts from what was committed."""
        self.state.commit()
        before = facts(self.state)
        self.state = InodeTable(self.kept)
        self.state.replay(self.kept.payloads)
        assert facts(self.state) == before

    @invariant()
    def holds_what_the_kernel_may_ask_for(self) -> None:
        for node, count in self.lookups.items():
            if count:
                assert self.state.nodes[node].lookups == count
                assert self.state.path(node).startswith(b"/")
        for node in self.held.values():
            assert self.state.nodes[node].handles == sum(1 for other in self.held.values() if other == node)

    @invariant()
    def holds_nothing_else(self) -> None:
        needed = {node for node, count in self.lookups.items() if count} | set(self.held.values())
        for node in list(needed):
            while node != ROOT:
                node = self.state.nodes[node].parent
                needed.add(node)
        assert set(self.state.nodes) == needed
        assert set(self.state.current.values()) <= needed


TestMachine = Machine.TestCase
TestMachine.settings = examples(60, steps=40)


def test_equal_hashes_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stripefs.vfs.inodes._derive", lambda *_: 1)
    kept = Kept()
    state = InodeTable(kept)
    ids = [state.add_lookup(ROOT, name, Kind.FILE, Identity(0, 0, "")).id for name in (b"a", b"b", b"c")]
    assert len(set(ids)) == 3
    assert ROOT not in ids
    state.commit()
    assert facts(recovered(kept.payloads)) == facts(state)


def test_no_step_of_a_compaction_carries_more_than_a_slice() -> None:
    kept = Kept(compact_every=100)
    state = InodeTable(kept)
    for number in range(100):
        state.add_lookup(ROOT, b"/%d" % number, Kind.FILE, Identity(0, 0, ""))
        state.commit()
    for _ in range(200):
        state.add_lookup(ROOT, b"/0", Kind.FILE, Identity(0, 0, ""))
        state.commit()
    assert kept.generations
    assert 0 < kept.longest <= journal.SLICE + 1  # that which the commit is about besides
    assert facts(recovered(kept.payloads)) == facts(state)


@pytest.mark.parametrize("call", ["append", "carry"])
def test_a_journal_that_refuses_now_and_then_loses_nothing(call: str) -> None:
    """The records that it refused go with the next commit."""
    kept = Kept(compact_every=6)
    state = InodeTable(kept)
    for number in range(50):
        kept.refuses = call if number % 3 == 0 else ""
        state.add_lookup(ROOT, b"%d" % (number % 9), Kind.FILE, Identity(number % 4, 0, ""))
        with contextlib.suppress(OSError):
            state.commit()
        if kept.refuses != "append":
            assert facts(recovered(kept.payloads)) == facts(state)
    assert kept.generations


def test_a_tree_without_a_journal_keeps_nothing_of_what_was_forgotten() -> None:
    state = InodeTable()
    for number in range(1000):
        node = state.add_lookup(ROOT, b"%d" % number, Kind.FILE, Identity(0, 0, ""))
        state.forget(node.id, 1)
        state.commit()
    assert len(state._compaction._order) < 20


def test_an_unknown_record_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown"):
        InodeTable().replay([struct.pack("<c", b"?")])


def test_the_journal_of_an_earlier_version_is_read_and_written_still() -> None:
    golden = (FOLDER / "inodes.journal").read_bytes()
    assert DOCUMENTS["inodes.journal"]() == golden
    wanted, found = InodeTable(), InodeTable()
    change_inodes(wanted)
    found.replay(parse(golden))
    assert facts(found) == facts(wanted)
    assert found.intents == wanted.intents
    assert len(found.intents) == 3
