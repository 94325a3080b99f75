"""The lock of one file: four writers of two mounts who are held up, die at any call to the store, and lose answers.

The model knows whose lock stands and when it was renewed. A writer's step, the rename of a hidden file of its own to
the name, is in two halves, between which anything may happen: it must find nothing once another was granted the lock.
A writer may also be held up between any two calls of one operation, until another has taken the lock over.
"""

from __future__ import annotations

import contextlib
import dataclasses
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

PICKS = st.integers(0, 3)
WAITS = st.sampled_from([1.0, LEASE / 3 - 0.1, 0.95 * LEASE + 0.3, LEASE + 1, LEASE + 1])
"""Seconds, of which no sum is a lease."""

CALLS = {"take": 16, "renew": 6, "release": 2}
"""The most calls to the store that each of these makes."""


def faults(operation: str) -> st.SearchStrategy[tuple[str, int] | None]:
    """A fault of one operation: the kind, and the number of the call that meets it."""
    calls = range(1, CALLS[operation] + 1)
    return st.sampled_from([None, *((kind, call) for kind in ("refused", "lost", "meanwhile") for call in calls)])


def deaths(operation: str) -> st.SearchStrategy[tuple[str, int]]:
    """The end of a process in the middle of an operation."""
    return st.tuples(st.sampled_from(["before", "after"]), st.integers(1, CALLS[operation]))


class _Failed(Exception):
    """An operation met a fault and is not repeated."""


class Untold(Client):
    """Putting a document does not answer its status."""

    def put_document(self, path: bytes, data: bytes) -> None:
        super().put_document(path, data)


class Writer:
    """Two of each mount. Each has a version of its own, which its hidden file bears."""

    def __init__(self, number: int, machine: Locks) -> None:
        self.mount = f"mount{number % 2}"
        machine.versions += 1
        self.version = f"{machine.versions:016x}"
        self.owner = f"{self.mount}/{self.version}"
        self.part = b"/" + part_name(b"file", self.version, 0)
        self.client = (Client if machine.told else Untold)(machine.store)
        self.client.capabilities = dataclasses.replace(self.client.capabilities, attributes=machine.times)
        self.lock: FileLock | None = None
        self.spare: FileLock | None = None
        """That of another file, which it does not need any more."""
        self.stepping: int | None = None
        """The number of times that the lock had been granted when its step was begun."""
        self.perhaps_fenced = False
        """Since that, one that took the lock over died before or after it had fenced the step."""


class Locks(RuleBasedStateMachine):
    @initialize(told=st.booleans(), times=st.booleans())
    def begin_all(self, told: bool, times: bool) -> None:
        """told: putting a document answers its status. times: they can be set."""
        self.told, self.times = told, times
        self.now = 1000.0
        self.store = MemoryStore(lambda: int(self.now * 1e9))
        self.versions = 0
        self.writers = [Writer(number, self) for number in range(4)]
        self.dead: list[Writer] = []
        self.grants: list[Writer] = []
        self.stands: Writer | None = None
        self.renewed = 0.0
        self.published: str | None = None
        self.overtaken = False
        """Another took the lock over while the last operation was held up."""

    # -- rules -------------------------------------------------------------------------------------------------------

    @precondition(lambda self: any(one.lock is None for one in self.writers))
    @rule(pick=PICKS, fault=faults("take"), again=st.booleans(), step=st.booleans())
    def take(self, pick: int, fault: tuple[str, int] | None, again: bool, step: bool) -> None:
        """again: it asks again after an error. step: it begins one at once."""
        without = [one for one in self.writers if one.lock is None]
        writer = without[pick % len(without)]
        before = self.stands
        free = before is None or before.mount == writer.mount or self.now - self.last_renewed > LEASE
        try:
            writer.lock = self.twice(writer, fault, lambda: self._take(writer), again)
        except _Failed:
            self.settle(writer)
            return
        except Busy:
            assert not free or self.overtaken
            return
        assert free
        self.grants.append(writer)
        writer.spare = None
        if self.overtaken:
            assert writer.lock.left <= 0
            return
        self.stands, self.renewed = writer, self.last_renewed
        assert writer.lock.left == pytest.approx(OWN * LEASE - (self.now - self.renewed))
        if step:
            self.begin(writer)

    @precondition(lambda self: any(one.lock is None for one in self.writers))
    @rule(pick=PICKS)
    def keep_a_spare(self, pick: int) -> None:
        without = [one for one in self.writers if one.lock is None]
        writer = without[pick % len(without)]
        if writer.spare is None:
            other, clock = b"/other-" + writer.version.encode(), lambda: self.now
            writer.spare = acquire(writer.client, other, ["f" * 16], writer.owner, clock=clock)

    @precondition(lambda self: self.holders)
    @rule(pick=PICKS, fault=faults("renew"), again=st.booleans(), add=st.booleans())
    def renew(self, pick: int, fault: tuple[str, int] | None, again: bool, add: bool) -> None:
        """add: the lock gets one version more, by which it is renewed."""
        writer, lock = self.holder(pick)
        self.versions += add
        version = f"{self.versions:016x}"
        try:
            self.twice(writer, fault, lambda: lock.add_version(version) if add else lock.renew(), again)
        except _Failed:
            self.settle(writer)
            return
        except DraftLost:
            assert self.stands is not writer
            return
        assert self.stands is writer
        self.renewed = self.now
        assert self.last_renewed == pytest.approx(self.now)
        assert lock.left == pytest.approx(OWN * LEASE)
        if add:
            held = read_lock(self.store, lock_path(FILE))
            assert held is not None
            assert {writer.version, version} <= set(held.versions)

    @precondition(lambda self: self.holders)
    @rule(pick=PICKS)
    def begin_a_step(self, pick: int) -> None:
        self.begin(self.holder(pick)[0])

    def begin(self, writer: Writer) -> None:
        if self.assert_held(writer) and writer.stepping is None:
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

    @precondition(lambda self: any(one.stepping is None for one in self.holders))
    @rule(pick=PICKS, fault=faults("release"), again=st.booleans())
    def release(self, pick: int, fault: tuple[str, int] | None, again: bool) -> None:
        writer, lock = self.holder(pick, stepping=False)
        try:
            self.twice(writer, fault, lock.release, again)
        except _Failed:
            self.settle(writer)
            return
        lock.release()
        writer.lock = None
        if self.stands is writer:
            self.stands = None

    @precondition(lambda self: any(one.lock is None for one in self.writers))
    @rule(pick=PICKS, death=deaths("take"))
    def die_while_taking(self, pick: int, death: tuple[str, int]) -> None:
        without = [one for one in self.writers if one.lock is None]
        writer = without[pick % len(without)]

        def take() -> None:
            self._take(writer)
            self.grants.append(writer)

        self.die(writer, death, take)

    @precondition(lambda self: self.holders)
    @rule(pick=PICKS, death=deaths("renew"))
    def die_while_renewing(self, pick: int, death: tuple[str, int]) -> None:
        writer, lock = self.holder(pick)
        self.die(writer, death, lock.renew)

    @precondition(lambda self: any(one.stepping is None for one in self.holders))
    @rule(pick=PICKS, death=deaths("release"))
    def die_while_releasing(self, pick: int, death: tuple[str, int]) -> None:
        writer, lock = self.holder(pick, stepping=False)
        self.die(writer, death, lock.release)

    def die(self, writer: Writer, death: tuple[str, int], call: Callable[[], object]) -> None:
        """Another writer of its mount takes its place; its last step may still come."""
        writer.client.kind, writer.client.countdown = death
        with contextlib.suppress(Died, StoreError):
            call()
        writer.client.heal()
        self.settle(writer)
        self.dead.append(writer)
        number = self.writers.index(writer)
        self.writers[number] = Writer(number, self)

    @rule(seconds=WAITS)
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

    @property
    def holders(self) -> list[Writer]:
        """Those that were granted the lock, and may have lost it."""
        return [one for one in self.writers if one.lock is not None]

    def holder(self, pick: int, *, stepping: bool = True) -> tuple[Writer, FileLock]:
        """One of the holders, and its lock. stepping: also one that is in the middle of a step."""
        some = [one for one in self.holders if stepping or one.stepping is None]
        writer = some[pick % len(some)]
        assert writer.lock is not None
        return writer, writer.lock

    @property
    def last_renewed(self) -> float:
        """The time of the lock that stands, which a renewal that comes late may have set back."""
        return self.store.stat(lock_path(FILE)).mtime_ns / 1e9

    def settle(self, writer: Writer) -> None:
        """Its operation ended nobody knows how: the lock that is there says what stands."""
        held = read_lock(self.store, lock_path(FILE))
        if held is None:
            self.stands = None
        elif held.owner == writer.owner:
            self.stands, self.renewed = writer, self.last_renewed
            for one in [*self.writers, *self.dead]:
                one.perhaps_fenced |= one is not writer

    def overtake(self, late: Writer) -> None:
        """A writer of the other mount finds the lock, if there is one, too old, and is granted it."""
        other = next((one for one in self.writers if one.mount != late.mount and one.lock is None), None)
        if other is None:
            return
        self.now += LEASE + 1
        other.lock = self._take(other)
        self.grants.append(other)
        self.stands, self.renewed, other.spare, self.overtaken = other, self.now, None, True

    def _take(self, writer: Writer) -> FileLock:
        handed = None
        if writer.spare is not None and not writer.spare.due:
            handed = writer.spare.hand_over(FILE, [writer.version], writer.owner)
        return handed or acquire(writer.client, FILE, [writer.version], writer.owner, clock=lambda: self.now)

    def twice(self, writer: Writer, fault: tuple[str, int] | None, call: Callable[[], _T], again: bool) -> _T:
        """A call that fails by its fault is made again, as its callers do; raises _Failed unless it is to be."""
        writer.client.kind, writer.client.countdown = fault or ("", 0)
        writer.client.meanwhile = lambda: self.overtake(writer)
        self.overtaken = False
        try:
            return call()
        except StoreError as error:
            met = writer.client.heal()
            if not met and isinstance(error, (Busy, DraftLost)):
                raise
            assert met
            if self.overtaken or again:
                return call()
            raise _Failed from error
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
TestLocks.settings = examples(120, steps=40)
