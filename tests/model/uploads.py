"""Writers of two mounts against a model of what may stand at each name: the state machine that its users add rules to.

The model knows three things of a name: the contents that may stand there, the upload that surely holds its lock, and
until when the lock of a writer that has ended may stay. A call that met no fault has to do what the model says; one
that met a fault may fail, and then the contents from before or those that were being published stand, never others.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stripefs.errors import Busy, NotFound, StaleVersion, StoreError
from stripefs.format.lock_and_record import LEASE
from stripefs.format.reserved_names import version_folder
from stripefs.store.striped import StripedStore
from stripefs.write import FileUpload, Layout, NotSequential
from stripefs.write.namespace import until_free
from stripefs.write.session import SPARE
from tests.model.mounts import Died, Mount, bearing, hidden_paths
from tests.support.memory_store import MemoryStore
from tests.support.simulation import Simulation
from tests.support.uploads import KIB, policy

_T = TypeVar("_T")

PATHS = (b"/a", b"/d/b", b"/c")
MOUNTS = ("left", "right")
SIZES = st.sampled_from([0, 1, 3000, 40 * KIB, 70 * KIB, 200 * KIB])
BIG = 200 * KIB
"""Bytes of a file that no memory holds as a whole, so it is of parts, or goes behind what is published."""

FAULTS = st.one_of(
    *[st.none()] * 3,
    st.tuples(st.sampled_from(["refused", "lost", "away", "before", "after"]), st.integers(1, 14)),
)
"""Of one operation: the kind, and the number of the call to the store that meets it."""

RENEWED = LEASE / 3 + 10
"""Seconds within which a lock of a living mount has been renewed for sure."""

GRACE = 300.0
"""Seconds for which the parts of a replaced version stay."""


@dataclass(eq=False)
class Draft:
    """An upload in the model. synced: what its last fsync promised. published: the file at its name is its own.
    failed: an operation of it met a fault. clean: none of its mount did, so it leaves nothing to gc.
    """

    mount: Mount
    path: bytes
    real: FileUpload
    data: bytes
    synced: bytes = b""
    published: bool = False
    detached: bool = False
    failed: bool = False
    clean: bool = True
    moved: bool = False


@dataclass(eq=False)
class Left:
    """A record of an fsync that may stand beside a name; `sure`: that does. stood: the contents at the name then."""

    synced: bytes
    data: bytes
    stood: bytes | None = None
    sure: bool = False


class Uploads(RuleBasedStateMachine):
    """Rules of writers."""

    @initialize()
    def begin_all(self) -> None:
        self.mounts: dict[str, Mount] = {}
        self.dead: list[Mount] = []
        self.chance = random.Random(1)
        self.simulation = Simulation(random.Random(2))
        self.stack = contextlib.ExitStack()
        self.stack.enter_context(self.simulation.patched())
        self.store = MemoryStore(lambda: int((1e9 + self.simulation.now) * 1e9))
        self.store.mkdir(b"/d")
        self.mounts |= {name: self._mount(name) for name in MOUNTS}
        self.drafts: list[Draft] = []
        self.stands: dict[bytes, set[bytes | None]] = {path: {None} for path in PATHS}
        self.held_until = dict.fromkeys(PATHS, -1.0)
        """When the lock of a writer that ended has surely run out."""
        self.surely_until: dict[bytes, tuple[float, str]] = dict.fromkeys(PATHS, (-1.0, ""))
        """Until when that of one that was killed surely stands, and the mount that may take it at once."""
        self.spares: dict[bytes, tuple[Mount, float]] = {}
        """The mounts that keep the locks of closed files for a moment, and until when."""
        self.left: dict[bytes, list[Left]] = {path: [] for path in PATHS}
        self.finished: set[str] = set()
        """Versions of uploads that were closed without having met a fault."""
        self.pooled: set[str] = set()
        """Versions that were published: their parts stay for readers."""

    def _mount(self, name: str) -> Mount:
        return Mount(self.simulation, self.store, name, policy(io_timeout=5.0, grace=GRACE))

    # -- writers -----------------------------------------------------------------------------------------------------

    @rule(
        name=st.sampled_from(MOUNTS),
        path=st.sampled_from(PATHS),
        layout=st.sampled_from(list(Layout)),
        append=st.booleans(),
        anew=st.booleans(),
        fault=FAULTS,
    )
    def begin(
        self, name: str, path: bytes, layout: Layout, append: bool, fault: tuple[str, int] | None, anew: bool = False
    ) -> None:
        """anew: whoever begins it knows nothing of the file that may stand there."""
        mount = self.mounts[name]
        stood = self.standing(path)
        identity = None if stood is None else StripedStore(self.store).stat(path).identity
        append, anew = append and stood is not None, anew and not append
        identity = None if anew else identity
        surely, by = self.surely_until[path]
        must_be_busy = self.holder(path) is not None or (self.simulation.now < surely and by != name)
        may_be_busy = must_be_busy or self.simulation.now <= self.held_until[path]
        try:
            real = self.call(
                mount,
                fault,
                lambda: mount.uploads.begin(path, replacing=identity, append=append, layout=layout, anew=anew),
            )
        except Died:
            self.lock_may_stay(path)
            return
        except StoreError as error:
            self.refused(error, unless=may_be_busy if isinstance(error, Busy) else self.met)
            if self.met:
                self.lock_may_stay(path)
            return
        assert not must_be_busy
        self.drafts.append(Draft(mount, path, real, stood if append and stood else b"", published=append))
        self.held_until[path], self.surely_until[path] = -1.0, (-1.0, "")

    @rule(
        name=st.sampled_from(MOUNTS),
        path=st.sampled_from(PATHS),
        layout=st.sampled_from(list(Layout)),
        then=st.sampled_from(["sync", "publish", "close"]),
        anew=st.booleans(),
    )
    def save(self, name: str, path: bytes, layout: Layout, then: str, anew: bool = False) -> None:
        """A big file, since most of what can go wrong needs one."""
        pick = len(self.drafts)
        self.begin(name, path, layout, append=False, fault=None, anew=anew)
        if len(self.drafts) > pick:
            self.write(pick, BIG, fault=None)
            if then == "sync":
                self.sync(pick, fault=None)
            else:
                self.publish(pick, final=then == "close", fault=None)

    @precondition(lambda self: self.drafts)
    @rule(pick=st.integers(0, 9), size=SIZES, fault=FAULTS)
    def write(self, pick: int, size: int, fault: tuple[str, int] | None) -> None:
        draft = self.pick(pick)
        data = self.chance.randbytes(size)
        if self.is_done(draft, fault, lambda: draft.real.write(len(draft.data), data)):
            draft.data += data
            assert draft.real.length == len(draft.data)

    @precondition(lambda self: self.drafts)
    @rule(pick=st.integers(0, 9), beyond=st.sampled_from([-1, 1, 5000]))
    def write_elsewhere(self, pick: int, beyond: int) -> None:
        draft = self.pick(pick)
        try:
            self.call(draft.mount, None, lambda: draft.real.write(len(draft.data) + beyond, b"x"))
        except NotSequential:
            return
        except StoreError as error:
            self.refused(error, unless=draft.failed)
            return
        raise AssertionError("a write elsewhere was taken")

    @precondition(lambda self: self.drafts)
    @rule(pick=st.integers(0, 9), at=st.floats(0, 1), size=SIZES)
    def read_back(self, pick: int, at: float, size: int) -> None:
        draft = self.pick(pick)
        offset = int(at * len(draft.data))
        try:
            found = self.call(draft.mount, None, lambda: draft.real.read(offset, size))
        except StoreError as error:
            gone = isinstance(error, StaleVersion) and draft.detached and draft.published
            self.refused(error, unless=draft.failed or gone)
            return
        assert found == draft.data[offset : offset + size]

    @precondition(lambda self: self.drafts)
    @rule(pick=st.integers(0, 9), fault=FAULTS)
    def sync(self, pick: int, fault: tuple[str, int] | None) -> None:
        draft = self.pick(pick)
        if self.is_done(draft, fault, draft.real.sync):
            draft.synced = draft.data

    @precondition(lambda self: self.drafts)
    @rule(pick=st.integers(0, 9), final=st.booleans(), fault=FAULTS)
    def publish(self, pick: int, final: bool, fault: tuple[str, int] | None) -> None:
        draft = self.pick(pick)
        before = set(self.stands[draft.path])
        if not draft.detached:
            self.stands[draft.path] = {*before, draft.data}
            self.pooled.add(draft.real.version)
        try:
            status = self.call(draft.mount, fault, lambda: draft.real.publish(final=final), final=final)
        except Died:
            return
        except StoreError as error:
            self.refused(error, unless=self.met or draft.failed)
            draft.failed = True
            if final:
                self.close(draft)
            return
        draft.published = True
        if not draft.detached:
            self.stands[draft.path] = {draft.data}
            assert status == draft.real.published
            assert status.identity == StripedStore(self.store).stat(draft.path).identity
        if final:
            self.close(draft)
        else:
            assert not draft.real.dirty
            again = self.call(draft.mount, None, lambda: draft.real.publish(final=False))
            assert draft.detached or again == status, "it is no version of its own"

    @precondition(lambda self: self.drafts)
    @rule(pick=st.integers(0, 9), fault=FAULTS)
    def abandon(self, pick: int, fault: tuple[str, int] | None) -> None:
        draft = self.pick(pick)
        with contextlib.suppress(Died):
            self.call(draft.mount, fault, draft.real.abandon, final=True)
            if not self.met:
                draft.synced = b""
            self.close(draft)

    @precondition(lambda self: self.drafts)
    @rule(pick=st.integers(0, 9), fault=FAULTS)
    def rewind(self, pick: int, fault: tuple[str, int] | None) -> None:
        draft = self.pick(pick)
        self.left[draft.path].append(Left(draft.synced, draft.data))
        if self.is_done(draft, fault, draft.real.rewind):
            draft.data = draft.synced = b""
            draft.failed = draft.failed and draft.real.failure is not None
            assert draft.real.length == 0

    @precondition(lambda self: any(not draft.detached for draft in self.drafts))
    @rule(pick=st.integers(0, 9))
    def unlink(self, pick: int) -> None:
        """The name goes while it is written, as a mount does it."""
        attached = [draft for draft in self.drafts if not draft.detached]
        draft = attached[pick % len(attached)]
        if self.standing(draft.path) is not None:
            self.store.remove(draft.path)
        self.stands[draft.path] = {None}
        self.call(draft.mount, None, draft.real.detach)
        draft.detached = True
        if draft.failed:
            self.lock_may_stay(draft.path)
        if draft.published and draft.real.layout is Layout.PLAIN:
            draft.failed = True  # perhaps: its stream may be copying the published bytes

    @rule(fault=FAULTS, more=SIZES, layout=st.sampled_from(list(Layout)))
    def move(self, fault: tuple[str, int] | None, more: int, layout: Layout) -> None:
        """A published file, a new one where there is none, gets the other name while it is written, and is published
        there with so many bytes more."""
        if not any(self.movable(draft) for draft in self.drafts):
            self.save(MOUNTS[0], PATHS[0], layout, "publish")
        draft = next((draft for draft in self.drafts if self.movable(draft)), None)
        if draft is None:
            return
        to = self.other(draft.path)

        async def move() -> None:
            async with contextlib.AsyncExitStack() as stack:
                await until_free("it is not moved", lambda: stack.enter_async_context(draft.real.moving(to)))
                self.store.rename(draft.path, to, replace=True)

        if draft.real.dirty and draft.real.layout is Layout.PLAIN:
            draft.failed = True  # perhaps: its stream may yet open the published bytes by their old name
        old, stood = draft.path, self.standing(draft.path)
        try:
            self.call(draft.mount, fault, move)
        except Died:
            self.surely_until[old] = self.surely_until[to] = -1.0, ""
            self.lock_may_stay(to)
            self.stands[old], self.stands[to] = {stood, None}, {stood, *self.stands[to]}
            return
        except StoreError as error:
            may_be_busy = isinstance(error, Busy) and self.simulation.now <= self.held_until[to]
            self.refused(error, unless=self.met or draft.failed or may_be_busy)
            self.surely_until[to] = (-1.0, "") if self.met else self.surely_until[to]
            self.lock_may_stay(to)
            draft.failed = True
            assert self.standing(old) == stood
            return
        self.held_until[to], self.surely_until[to] = -1.0, (-1.0, "")
        if self.met:
            self.lock_may_stay(old)
        self.stands[old], self.stands[to] = {None}, {stood}
        self.left[old].append(Left(draft.synced, draft.data))
        draft.path, draft.moved = to, True
        if more:
            self.write(self.drafts.index(draft), more, fault=None)
        if draft in self.drafts:
            self.publish(self.drafts.index(draft), final=False, fault=None)

    @staticmethod
    def other(path: bytes) -> bytes:
        """The path to which a file at `path` is moved."""
        return PATHS[(PATHS.index(path) + 1) % len(PATHS)]

    def movable(self, draft: Draft) -> bool:
        other = self.other(draft.path)
        return (
            draft.published
            and not draft.detached
            and self.holder(other) is None
            and self.standing(draft.path) is not None
        )

    # -- processes and time ------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(MOUNTS))
    def kill(self, name: str) -> None:
        """A mount's process ends at once, and the next one comes."""
        mount = self.mounts[name]
        mount.kill()
        self.replace(mount)

    @rule(seconds=st.sampled_from([1.0, 15.0, RENEWED, LEASE + 1, 2.5 * LEASE]))
    def wait(self, seconds: float) -> None:
        self.simulation.run_for(seconds)

    @invariant()
    def names_hold_what_they_may(self) -> None:
        if not hasattr(self, "store"):
            return
        for path in PATHS:
            self.standing(path)
        view = StripedStore(self.store)
        listed = {status.name for folder in (b"/", b"/d") for batch in view.scandir(folder) for status in batch}
        assert listed == {b"d", *(path.rsplit(b"/")[-1] for path in PATHS if None not in self.stands[path])}

    @invariant()
    def nothing_is_left_of_what_has_ended(self) -> None:
        """Of uploads that met no fault: of a closed one nothing but a published version, of one that was begun anew
        nothing of what it was before, of one that was unlinked no record."""
        if not hasattr(self, "store"):
            return
        clean = [draft for draft in self.drafts if draft.clean]
        hidden = hidden_paths(self.store) - {version_folder(version) for version in self.pooled}
        assert not bearing(hidden, self.finished)
        unlocked = [path for path in hidden if not path.endswith(b"-lock")]
        assert not bearing(unlocked, [version for draft in clean for version in draft.real.versions[:-1]])
        unlinked = [draft.real.version for draft in clean if draft.detached]
        assert not [path for path in bearing(hidden, unlinked) if b"-record" in path]

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        try:
            for mount in [*self.mounts.values(), *self.dead]:
                mount.client.heal()
                mount.stop()
            self.simulation.run()
            self.judge()
        finally:
            self.stack.close()

    def judge(self) -> None:
        """At the end, when no process is left: names hold what they may."""
        for path in PATHS:
            self.standing(path)

    # -- the model ---------------------------------------------------------------------------------------------------

    def call(
        self,
        mount: Mount,
        fault: tuple[str, int] | None,
        operation: Callable[[], Awaitable[_T]],
        *,
        final: bool = False,
    ) -> _T:
        """One operation with one fault. Afterwards `met` tells whether it met one that may make it fail."""
        client = mount.client
        client.kind, client.countdown = fault or ("", 0)
        self.met = False
        spares = self.spares_of(mount)
        try:
            return mount.do(operation)
        except Died:
            self.replace(mount, unlocked=final)
            raise
        finally:
            self.met = client.heal()
            if self.met:
                for path in spares:
                    self.lock_may_stay(path)
            for draft in self.drafts:
                draft.clean &= not (self.met and draft.mount is mount)

    def is_done(self, draft: Draft, fault: tuple[str, int] | None, operation: Callable[[], Awaitable[object]]) -> bool:
        """An operation of an upload. False where it failed, as it may with a fault or after a failure."""
        try:
            self.call(draft.mount, fault, operation)
        except Died:
            return False
        except StoreError as error:
            self.refused(error, unless=self.met or draft.failed)
            draft.failed = True
            return False
        return True

    @staticmethod
    def refused(error: StoreError, *, unless: bool) -> None:
        """Nothing refuses an operation, unless it may."""
        if not unless:
            raise AssertionError("it failed, and nothing had gone wrong") from error

    def replace(self, mount: Mount, *, unlocked: bool = False) -> None:
        """The next process of a mount comes. unlocked: the one before may have let locks go."""
        for path in self.spares_of(mount):
            self.lock_may_stay(path)
        for draft in [draft for draft in self.drafts if draft.mount is mount]:
            if not draft.detached:
                self.lock_may_stay(draft.path)
                if not unlocked and not draft.failed:
                    self.surely_until[draft.path] = (self.simulation.now + LEASE - RENEWED, mount.name)
            self.ended(draft, sure=not unlocked)
        self.dead.append(mount)
        self.mounts[mount.name] = self._mount(mount.name)

    def close(self, draft: Draft) -> None:
        """It is closed. With a fault its lock may stay."""
        if (self.met or draft.failed) and not draft.detached:
            self.lock_may_stay(draft.path)
        self.spares[draft.path] = draft.mount, self.simulation.now + 2 * SPARE
        if draft.clean:
            self.finished.update(draft.real.versions)
        self.ended(draft, sure=False)

    def ended(self, draft: Draft, *, sure: bool) -> None:
        """sure: its last fsync stands for sure, where there was one."""
        self.drafts.remove(draft)
        if draft.synced and not draft.detached:
            stood = self.standing(draft.path)
            sure = sure and not draft.failed and not draft.moved and draft.synced != stood
            self.left[draft.path].append(Left(draft.synced, draft.data, stood, sure))

    def spares_of(self, mount: Mount) -> list[bytes]:
        """Paths of closed files whose locks a mount may keep now."""
        return [path for path, (one, until) in self.spares.items() if one is mount and self.simulation.now <= until]

    def lock_may_stay(self, path: bytes) -> None:
        self.held_until[path] = self.simulation.now + LEASE + 10

    def holder(self, path: bytes) -> Draft | None:
        return next((draft for draft in self.drafts if draft.path == path and not draft.detached), None)

    def pick(self, number: int) -> Draft:
        return self.drafts[number % len(self.drafts)]

    def standing(self, path: bytes) -> bytes | None:
        """The contents at a name, which has to be one that may stand there; it alone does from now on."""
        try:
            found: bytes | None = bytes(StripedStore(self.store).get(path))
        except NotFound:
            found = None
        assert found in self.stands[path], f"{path!r} holds {found and len(found)} bytes that may not stand there"
        self.stands[path] = {found}
        return found
