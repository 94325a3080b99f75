"""The lock of one file: four writers of two mounts who are held up, die at any call to the store, and lose answers.

The model knows whose lock stands and when it was renewed. A writer's step, the rename of a hidden file of its own to
the name, is in two halves, between which anything may happen: it must find nothing once another was granted the lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stripefs.errors import Busy, DraftLost, LeaseEnded, NotFound, StoreError
from stripefs.format.lock_and_record import LEASE
from stripefs.format.reserved_names import part_name
from stripefs.write.file_lock import FileLock, acquire, lock_path, read_lock
from tests.model.mounts import Client, Died
from tests.support.examples import examples
from tests.support.memory_store import MemoryStore

_T = TypeVar("_T")

FILE = b"/file"
OWN = 0.9
"""Share of its lease that a writer counts on."""

WRITERS = st.integers(0, 3)
FAULTS = st.one_of(st.none(), st.tuples(st.sampled_from(["refused", "lost"]), st.integers(1, 8)))
DEATHS = st.tuples(st.sampled_from(["before", "after"]), st.integers(1, 12))


class Writer:
    """Two of each mount. Each has a version of its own, which its hidden file bears."""

    def __init__(self, number: int, machine: Locks) -> None:
        self.mount = f"mount{number % 2}"
        machine.versions += 1
        self.version = f"{machine.versions:016x}"
        self.owner = f"{self.mount}/{self.version}"
        self.part = b"/" + part_name(b"file", self.version, 0)
        self.client = Client(machine.store)
        self.lock: FileLock | None = None
        self.stepping: int | None = None
        """How often the lock had been granted when its step was begun."""
        self.perhaps_fenced = False
        """Since that, one that took the lock over died before or after it had fenced the step."""


class Locks(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now = 1000.0
        self.store = MemoryStore(lambda: int(self.now * 1e9))
        self.versions = 0
        self.writers = [Writer(number, self) for number in range(4)]
        self.dead: list[Writer] = []
        self.grants: list[Writer] = []
        self.stands: Writer | None = None
        self.renewed = 0.0
        self.published: str | None = None

    # -- rules -------------------------------------------------------------------------------------------------------

    @rule(number=WRITERS, fault=FAULTS)
    def take(self, number: int, fault: tuple[str, int] | None) -> None:
        writer = self.writers[number]
        if writer.lock is not None:
            return
        before = self.stands
        free = before is None or before.mount == writer.mount or self.now - self.renewed > LEASE
        try:
            writer.lock = self.twice(writer, fault, lambda: self._take(writer))
        except Busy:
            assert not free
            return
        assert free
        self.grants.append(writer)
        self.stands, self.renewed = writer, self.now

    @rule(number=WRITERS, fault=FAULTS)
    def renew(self, number: int, fault: tuple[str, int] | None) -> None:
        writer = self.writers[number]
        if (lock := writer.lock) is None:
            return
        try:
            self.twice(writer, fault, lock.renew)
        except DraftLost:
            assert self.stands is not writer
            return
        assert self.stands is writer
        self.renewed = self.now
        assert lock.left == pytest.approx(OWN * LEASE)

    @rule(number=WRITERS)
    def add_a_version(self, number: int) -> None:
        writer = self.writers[number]
        if (lock := writer.lock) is None:
            return
        self.versions += 1
        version = f"{self.versions:016x}"
        try:
            lock.add_version(version)
        except DraftLost:
            assert self.stands is not writer
            return
        assert self.stands is writer
        self.renewed = self.now
        held = read_lock(self.store, lock_path(FILE))
        assert held is not None
        assert {writer.version, version} <= set(held.versions)

    @rule(number=WRITERS)
    def ask(self, number: int) -> None:
        self.assert_held(self.writers[number])

    @rule(number=WRITERS)
    def begin_a_step(self, number: int) -> None:
        writer = self.writers[number]
        if writer.stepping is None and self.assert_held(writer):
            self.store.put(writer.part, [writer.version.encode()], replace=True)
            writer.stepping, writer.perhaps_fenced = len(self.grants), False

    @precondition(lambda self: any(one.stepping is not None for one in [*self.writers, *self.dead]))
    @rule(last=st.booleans())
    def end_a_step(self, last: bool) -> None:
        stepping = [one for one in [*self.writers, *self.dead] if one.stepping is not None]
        writer = stepping[-1 if last else 0]
        granted, writer.stepping = self.grants[writer.stepping :], None
        if any(one is not writer for one in granted):
            with pytest.raises(NotFound):
                self.store.rename(writer.part, FILE, replace=True)
            return
        with contextlib.suppress(NotFound) if writer.perhaps_fenced else contextlib.nullcontext():
            self.store.rename(writer.part, FILE, replace=True)
            self.published = writer.version

    @rule(number=WRITERS, fault=FAULTS)
    def release(self, number: int, fault: tuple[str, int] | None) -> None:
        writer = self.writers[number]
        if (lock := writer.lock) is None or writer.stepping is not None:
            return
        self.twice(writer, fault, lock.release)
        lock.release()
        writer.lock = None
        if self.stands is writer:
            self.stands = None

    @rule(number=WRITERS, death=DEATHS, what=st.sampled_from(["take", "renew", "release"]))
    def die(self, number: int, death: tuple[str, int], what: str) -> None:
        """In the middle of something. Another writer of its mount takes its place; its last step may still come."""
        writer = self.writers[number]
        calls: dict[str, Callable[[], object]] = {"take": lambda: self._take(writer)}
        if writer.lock is not None:
            calls = {"renew": writer.lock.renew}
            if writer.stepping is None:
                calls["release"] = writer.lock.release
        if what not in calls:
            return
        writer.client.kind, writer.client.countdown = death
        with contextlib.suppress(Died, StoreError):
            calls[what]()
            if what == "take":
                self.grants.append(writer)
        writer.client.heal()
        held = read_lock(self.store, lock_path(FILE))
        if held is None:
            self.stands = None
        elif held.owner == writer.owner:
            self.stands = writer
            self.renewed = self.store.stat(lock_path(FILE)).mtime_ns / 1e9
            for one in [*self.writers, *self.dead]:
                one.perhaps_fenced |= one is not writer
        self.dead.append(writer)
        self.writers[number] = Writer(number, self)

    @rule(seconds=st.sampled_from([1.0, LEASE / 3 - 0.1, 0.95 * LEASE + 0.3, LEASE + 1]))  # no sum is a lease
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def the_lock_is_the_models(self) -> None:
        if not hasattr(self, "store"):
            return
        held = read_lock(self.store, lock_path(FILE))
        assert (held and held.owner) == (self.stands and self.stands.owner)
        if self.published is not None:
            assert bytes(self.store.get(FILE)) == self.published.encode()

    # -- the model ---------------------------------------------------------------------------------------------------

    def _take(self, writer: Writer) -> FileLock:
        return acquire(writer.client, FILE, [writer.version], writer.owner, clock=lambda: self.now)

    def twice(self, writer: Writer, fault: tuple[str, int] | None, call: Callable[[], _T]) -> _T:
        """A call that fails by its fault is made again, as its callers do."""
        writer.client.kind, writer.client.countdown = fault or ("", 0)
        try:
            return call()
        except (Busy, DraftLost):
            if writer.client.heal():
                return call()
            raise
        except StoreError:
            assert writer.client.heal()
            return call()
        finally:
            writer.client.heal()

    def assert_held(self, writer: Writer) -> bool:
        if (lock := writer.lock) is None:
            return False
        try:
            lock.assert_held()
        except DraftLost:
            assert self.stands is not writer
            return False
        except LeaseEnded:
            assert self.stands is writer
            assert lock.left <= 0
            return False
        assert self.stands is writer
        assert self.now - self.renewed < OWN * LEASE
        return True


TestLocks = Locks.TestCase
TestLocks.settings = examples(60, steps=40)
