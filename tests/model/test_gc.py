"""`gc` and `recover` beside writers, and after them: what files need stays, what was made durable comes back, the rest
goes, also where any of the programs dies at any call to the store.
"""

from __future__ import annotations

import itertools

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from stripefs.errors import NotFound, StoreError
from stripefs.format.lock_and_record import LEASE
from stripefs.format.reserved_names import version_folder
from stripefs.gc.collect import Collected, Collection
from stripefs.gc.recover import recover
from stripefs.gc.rules import AGE, FORCED_AGE, RECOVERABLE
from stripefs.store.striped import StripedStore
from tests.model.mounts import Client, Died, hidden_paths, run_program
from tests.model.uploads import MOUNTS, PATHS, Uploads
from tests.support.examples import examples

DEATHS = st.one_of(st.none(), st.tuples(st.sampled_from(["before", "after"]), st.integers(1, 30)))


class Collections(Uploads):
    """Further rules: programs that clean up."""

    @rule(force=st.booleans(), fault=DEATHS)
    def collect(self, force: bool, fault: tuple[str, int] | None) -> None:
        client = Client(self.store)
        client.kind, client.countdown = fault or ("", 0)
        if force:
            self._doubt()
        try:
            found = run_program(self.simulation, client, lambda: self._collect(client, force=force))
        except Died:
            self._locks_may_stay()
            return
        assert found.trouble == []

    @rule(path=st.sampled_from(PATHS), fault=DEATHS)
    def recover(self, path: bytes, fault: tuple[str, int] | None) -> None:
        client = Client(self.store)
        client.kind, client.countdown = fault or ("", 0)
        stood, left = self.standing(path), self.left[path]
        newest = left[-1] if left else None
        must = (
            newest is not None
            and newest.sure
            and newest.stood is None
            and stood is None
            and self.holder(path) is None
            and self.simulation.now > self.held_until[path]
        )
        try:
            plan = run_program(self.simulation, client, lambda: recover(client, StripedStore(client), path))
        except Died:
            self._locks_may_stay()
            self._recovered(path, stood)
            return
        except StoreError as error:
            self.refused(error, unless=not must)
            return
        self._recovered(path, stood)
        assert plan.length == len(self.standing(path) or b"")

    @precondition(lambda self: not self.drafts)
    @rule(seconds=st.sampled_from([FORCED_AGE + 1, AGE + LEASE, RECOVERABLE + AGE]))
    def unmounted_for_long(self, seconds: float) -> None:
        for mount in self.mounts.values():
            mount.stop()
        self.simulation.now += seconds
        if seconds > RECOVERABLE:
            self._doubt()
        self.mounts = {name: self._mount(name) for name in MOUNTS}

    def judge(self) -> None:
        super().judge()
        self.simulation.now += RECOVERABLE + AGE
        client = Client(self.store)
        found = run_program(self.simulation, client, lambda: self._collect(client, force=False))
        assert (found.trouble, found.recoverable) == ([], [])
        super().judge()
        view = StripedStore(self.store)
        standing = [view.manifest(path) for path in PATHS if self.standing(path) is not None]
        manifests = [manifest for manifest in standing if manifest is not None]
        needed = {version_folder(part.version) for manifest in manifests for part in manifest.parts}
        lists = {version_folder(manifest.version) for manifest in manifests}
        assert needed <= hidden_paths(self.store) <= needed | lists

    def _collect(self, client: Client, *, force: bool) -> Collected:
        return Collection(client, StripedStore(client), force=force).run()

    def _recovered(self, path: bytes, stood: bytes | None) -> None:
        """A file there is the one before, or the one that a record promised with the bytes behind it."""
        try:
            found: bytes | None = bytes(StripedStore(self.store).get(path))
        except NotFound:
            found = None
        if found != stood:
            assert found is not None
            assert any(one.data.startswith(found) and found.startswith(one.synced) for one in self.left[path])
        self.stands[path] = {found}
        self._doubt()

    def _doubt(self) -> None:
        """No record stands for sure any more."""
        for one in itertools.chain(*self.left.values()):
            one.sure = False

    def _locks_may_stay(self) -> None:
        for path in PATHS:
            if self.holder(path) is None:
                self.lock_may_stay(path)


TestCollections = Collections.TestCase
TestCollections.settings = examples(40, steps=25)
