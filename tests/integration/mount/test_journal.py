"""Memory that outlives a worker: whatever instruction a worker dies at, the next one finds a prefix."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stripefs.fuse import state_memory
from stripefs.fuse.state_memory import CounterPage, MemoryJournal, make_memory, parse
from stripefs.store.base import Identity, Kind, Status
from stripefs.vfs import journal
from stripefs.vfs.inodes import ROOT, InodeTable

PAYLOADS = st.lists(st.binary(min_size=1, max_size=200), max_size=20)
STEPS = st.tuples(
    st.sampled_from(["see", "inside", "forget", "open", "list", "close", "move", "intend", "settle"]),
    st.integers(0, 7),
    st.integers(0, 3),
)


@contextlib.contextmanager
def _memory() -> Iterator[tuple[int, int, int]]:
    descriptors = make_memory()
    try:
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@pytest.fixture
def memory() -> Iterator[tuple[int, int, int]]:
    with _memory() as made:
        yield made


def _open(memory: tuple[int, int, int]) -> MemoryJournal:
    return MemoryJournal(CounterPage(memory[0]), memory[1:])


def _written(payloads: Iterable[bytes]) -> bytes:
    with _memory() as memory:
        kept = _open(memory)
        for payload in payloads:
            kept.append(payload)
        return os.pread(memory[1], 1 << 20, 0)


@given(PAYLOADS.filter(bool), st.data())
def test_a_changed_byte_ends_the_journal(payloads: list[bytes], data: st.DataObject) -> None:
    written = bytearray(_written(payloads))
    written[data.draw(st.integers(0, len(written) - 1))] ^= data.draw(st.integers(1, 255))
    found = list(parse(bytes(written)))
    assert found == payloads[: len(found)]
    assert len(found) < len(payloads)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["append", "replace", "clear", "begin", "finish", "die", "tear"]),
            st.binary(min_size=1, max_size=200),
        ),
        max_size=30,
    )
)
def test_like_a_list(steps: list[tuple[str, bytes]]) -> None:
    """A new generation is begun with one payload, and gets what was appended since in steps of 64 bytes at most."""
    with _memory() as memory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_memory, "_COPIED", 64)
        kept, model, generation = _open(memory), list[bytes](), list[bytes]()
        since = 0
        for step, payload in steps:
            if step == "append":
                kept.append(payload)
                model.append(payload)
            elif step == "replace":
                model, generation = [payload, b"more"], []
                kept.replace(model)
            elif step == "clear":
                model, generation = [], []
                kept.clear()
            elif step == "begin":
                kept.begin()
                kept.carry(payload)
                generation, since = [payload], len(model)
            elif step == "finish" and generation:
                before = [os.fstat(slot).st_size for slot in memory[1:]]
                if kept.finish():
                    model, generation = generation + model[since:], []
                else:
                    assert sum(os.fstat(slot).st_size for slot in memory[1:]) <= sum(before) + 64
            elif step in ("die", "tear"):
                if step == "tear" and model:
                    slot = memory[1 + CounterPage(memory[0]).slot]
                    os.ftruncate(slot, os.fstat(slot).st_size - 1)
                    model.pop()
                kept, generation = _open(memory), []
                assert list(kept.load()) == model
        assert list(_open(memory).load()) == model


def test_short_writes_are_completed(memory: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda slot, data, at: whole(slot, data[:5], at))
    _open(memory).append(b"a payload of some length")
    assert list(_open(memory).load()) == [b"a payload of some length"]


def test_replacing_pays_only_when_much_is_dead(memory: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_memory, "_SMALLEST", 1000)
    kept = _open(memory)
    kept.append(b"x" * 900)
    assert not kept.full()
    kept.append(b"x" * 900)
    assert kept.full()
    kept.replace([b"x" * 900])
    assert not kept.full()


def test_counters_go_on_in_the_next_worker(memory: tuple[int, int, int]) -> None:
    CounterPage(memory[0]).count(answered=3, failed=1, read_bytes=1 << 40, written_bytes=1 << 41)
    second = CounterPage(memory[0])
    second.count(answered=1)
    assert CounterPage(memory[0]).read() == {
        "answered": 4,
        "failed": 1,
        "read_bytes": 1 << 40,
        "written_bytes": 1 << 41,
    }


class _Torn:
    """`os` for the journal: each write comes in two halves, and `look` is called after each thing that others see."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def pwrite(self, slot: int, data: bytes, at: int) -> int:
        done = os.pwrite(slot, data[: len(data) // 2], at)
        self._look()
        done += os.pwrite(slot, data[done:], at + done)
        self._look()
        return done

    def ftruncate(self, slot: int, size: int) -> None:
        self._look()  # with the slot flipped, it may be
        os.ftruncate(slot, size)
        self._look()


@settings(max_examples=30, deadline=None)
@given(st.lists(STEPS, min_size=20, max_size=60))
def test_whoever_dies_in_a_compaction_leaves_what_was_committed(steps: list[tuple[str, int, int]]) -> None:
    committed: list[str] = []

    def look() -> None:
        again = InodeTable()
        again.replay(parse(os.pread(slots[1 + CounterPage(slots[0]).slot], 1 << 20, 0)))
        assert _facts(again) in committed

    with _memory() as slots, pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_memory, "os", _Torn(look))
        patch.setattr(state_memory, "_SMALLEST", 200)
        patch.setattr(state_memory, "_COPIED", 64)
        patch.setattr(journal, "SLICE", 2)
        state = InodeTable(_open(slots))
        committed.append(_facts(state))
        for step in steps:
            _change(state, *step)
            committed = [committed[-1], _facts(state)]
            state.commit()
            committed = [committed[-1]]
            look()


def _change(state: InodeTable, step: str, name: int, version: int) -> None:
    folder = state.add_lookup(ROOT, b"d%d" % (name % 2), Kind.DIRECTORY, None).id
    if step == "inside":
        state.add_lookup(folder, b"%d" % name, Kind.FILE, Identity(version, 0, ""))
    elif step == "forget":
        for node_id in [each for each in state.nodes if each % 2 == version % 2]:
            state.forget(node_id, 1)
    elif step == "open":
        node = state.add_lookup(folder, b"%d" % name, Kind.FILE, Identity(version, 0, ""))
        state.open_file(node.id, Status(b"%d" % name, Kind.FILE, version))
    elif step == "list":
        handle = state.open_directory(folder)
        for number in range(name):
            state.add_cookie(handle, b"%d" % number)
    elif step == "close" and (handles := [*state.files, *state.directories]):
        state.release(handles[name % len(handles)])
    elif step == "move":
        node = state.add_lookup(ROOT, b"%d" % name, Kind.FILE, Identity(version, 0, ""))
        state.rekey(node.id, folder, b"%d" % version, Identity(name, 0, ""))
    elif step == "intend":
        state.begin_intent(b"%d" % name)
    elif step == "settle" and state.intents:
        state.end_intent(min(state.intents))
    else:
        state.add_lookup(ROOT, b"%d" % name, Kind.FILE, Identity(version, 0, ""))


@given(st.lists(STEPS), st.data())
def test_a_state_cut_off_anywhere_is_an_earlier_state(steps: list[tuple[str, int, int]], data: st.DataObject) -> None:
    with _memory() as memory:
        state = InodeTable(_open(memory))
        history = [_facts(state)]
        for step in steps:
            _change(state, *step)
            state.commit()
            history.append(_facts(state))
        os.ftruncate(memory[1], data.draw(st.integers(0, os.fstat(memory[1]).st_size)))
        whole = list(_open(memory).load())
        again = InodeTable()
        again.replay(whole)
        assert _facts(again) == history[len(whole)]


def _facts(state: InodeTable) -> str:
    tables = (state.nodes, state.current, state.files, state.directories, state.intents)
    return repr([sorted(table.items()) for table in tables])
