"""The snapshotter against a plain one in memory: any order of calls, restarts, crashes and daemons that forget."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from imagefs.snapshotter.metastore import AlreadyExists, FailedPrecondition, InvalidArgument, Kind, SnapshotNotFound
from imagefs.snapshotter.snapshotter import PARENT_CHAIN, TARGET, Mount, Snapshotter
from stripefs.errors import MountError, StripefsError
from tests.support.examples import examples
from tests.unit.imagefs.snapshotter.fake_images import HIGHEST, IMAGE, FakeImages

NAMES = st.sampled_from(["a", "b", "c", "d", "e", "f"])
PICKS = st.integers(0, 99)
"""The index of a snapshot among those that fit; beyond 80 any name, so that unfit ones are tried too."""

ANY = ["", "a", "b", "c", "d", "e", "f"]
LABELS = st.dictionaries(st.sampled_from(["x", "y.z", "containerd.io/gc.root"]), st.sampled_from(["", "1", "2"]))
LAYER_OF = st.sampled_from(["lazy", "unknown"])


@dataclass
class Plain:
    """A snapshot of the model."""

    kind: Kind
    parent: str
    labels: dict[str, str]
    number: int
    chain: str = ""
    tree: str = ""
    written: set[str] = field(default_factory=set)


class Model:
    """Snapshots in a dictionary, with the rules of containerd's documentation and nothing else."""

    def __init__(self) -> None:
        self.all: dict[str, Plain] = {}
        self._made = 0

    def make(self, key: str, parent: str, kind: Kind, labels: dict[str, str]) -> Plain:
        if key in self.all:
            raise AlreadyExists(key)
        self._committed(parent)
        self._made += 1
        self.all[key] = Plain(kind, parent, labels, self._made)
        return self.all[key]

    def commit(self, name: str, key: str, parent: str, labels: dict[str, str]) -> None:
        active = self.get(key)
        if active.kind is not Kind.ACTIVE:
            raise FailedPrecondition(key)
        if parent and active.parent and parent != active.parent:
            raise InvalidArgument(parent)
        if name != key and name in self.all:
            raise AlreadyExists(name)
        self._committed(parent or active.parent)
        del self.all[key]
        active.kind, active.labels, active.parent = Kind.COMMITTED, labels, parent or active.parent
        self.all[name] = active

    def remove(self, name: str) -> None:
        self.get(name)
        if any(one.parent == name for one in self.all.values()):
            raise FailedPrecondition(name)
        del self.all[name]

    def get(self, name: str) -> Plain:
        if name not in self.all:
            raise SnapshotNotFound(name)
        return self.all[name]

    def chain(self, name: str) -> list[str]:
        found = [name]
        while parent := self.all[found[-1]].parent:
            found.append(parent)
        return found

    def lazy_below(self, name: str) -> str:
        """The nearest parent that is lazy, "" for none."""
        return next((one for one in self.chain(name)[1:] if self.all[one].chain), "")

    def usage(self, name: str) -> tuple[int, int]:
        """Bytes of lazy images, as `FakeImages` counts them, and inodes."""
        one = self.get(name)
        if one.chain:
            older = {each.tree for each in self.all.values() if each.chain and each.tree and each.number < one.number}
            return (0, 0) if not one.tree or one.tree in older else (len(one.tree) + (not older), 1)
        return (0, 0 if one.kind is Kind.VIEW else 1 + len(one.written))

    def _committed(self, parent: str) -> None:
        if parent and self.get(parent).kind is not Kind.COMMITTED:
            raise InvalidArgument(parent)


class Snapshotters(RuleBasedStateMachine):
    """Each rule makes the same call of both, and compares."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="snapshots-"))
        self.images = FakeImages(self.folder)
        self.model = Model()
        self.real = Snapshotter(self.folder / "root", self.images)

    def teardown(self) -> None:
        self.real.close()
        shutil.rmtree(self.folder)

    @rule(key=NAMES, above=PICKS, labels=LABELS, view=st.booleans())
    def make(self, key: str, above: int, labels: dict[str, str], view: bool) -> None:
        self._make(key, self._parent(above), labels, view)

    def _make(self, key: str, parent: str, labels: dict[str, str], view: bool) -> None:
        kind = Kind.VIEW if view else Kind.ACTIVE
        call = self.real.view if view else self.real.prepare
        needs_daemon = parent in self.model.all and (self.model.lazy_below(parent) or self.model.all[parent].chain)
        is_valid = key not in self.model.all and needs_daemon and self.model.all[parent].kind is Kind.COMMITTED
        if self.images.away and is_valid:
            with pytest.raises(MountError):
                call(key, parent, labels)
            return
        mounts = self._both(lambda: call(key, parent, labels), lambda: self.model.make(key, parent, kind, labels))
        if mounts is not None:
            self._check(key, mounts)

    @rule(key=NAMES, chain=NAMES, above=PICKS, image=LAYER_OF, highest=st.booleans())
    def extract(self, key: str, chain: str, above: int, image: str, highest: bool) -> None:
        """An extraction is answered with ALREADY_EXISTS where the image is lazy, and like others where it is not."""
        parent = self._parent(above)
        if self.images.away or chain == parent:
            return
        labels = {TARGET: chain, IMAGE: image} | ({HIGHEST: ""} if highest else {})
        if image != "lazy":
            self._make(key, parent, labels, view=False)
            return
        known = self.model.all.get(chain)
        wrong_parent = None
        if known is None:
            try:
                made = self.model.make(chain, parent, Kind.COMMITTED, labels)
                made.chain, made.tree = chain, "lazy" if highest else ""
            except StripefsError as error:
                wrong_parent = type(error)
        with pytest.raises(wrong_parent or AlreadyExists):
            self.real.prepare(key, parent, labels)
        is_same = known is not None and known.kind is Kind.COMMITTED and known.parent == parent
        if known is not None and is_same and known.chain and highest and not known.tree:
            known.tree = "lazy"

    @rule(key=NAMES, chain=NAMES, image=LAYER_OF, highest=st.booleans())
    def extract_side_by_side(self, key: str, chain: str, image: str, highest: bool) -> None:
        """The parent comes with the Commit; a layer of a lazy image is committed as any other, without files."""
        if self.images.away:
            return
        labels = {TARGET: chain, IMAGE: image, PARENT_CHAIN: "some chain"} | ({HIGHEST: ""} if highest else {})
        model = self.model
        made = self._both(lambda: self.real.prepare(key, "", labels), lambda: model.make(key, "", Kind.ACTIVE, labels))
        if made is None:
            return
        (mount,) = made
        if image == "lazy":
            model.all[key].chain, model.all[key].tree = chain, "lazy" if highest else ""
            assert (mount.type, "ro" in mount.options) == ("bind", True), "there is nothing to extract"
        else:
            options = dict(one.partition("=")[::2] for one in mount.options)
            own = self._own(key)
            assert (options["lowerdir"], options["upperdir"]) == (str(self.folder / "root/empty"), str(own))
            assert options["workdir"] == str(own.with_name("work"))

    @rule(key=NAMES, above=PICKS, view=st.booleans())
    def crash_in_prepare(self, key: str, above: int, view: bool) -> None:
        """The database knows the snapshot, and its directories were not made, nor was the daemon asked."""
        parent, kind = self._parent(above), Kind.VIEW if view else Kind.ACTIVE
        if self.images.away:
            return
        store = self.real._store
        made = self._both(lambda: store.create(key, parent, kind, {}), lambda: self.model.make(key, parent, kind, {}))
        (self.folder / "root/snapshots/1000000").mkdir()
        self.restart()
        self.real.cleanup()
        self.real.reconcile()
        if made is not None:
            self._check(key, self.real.mounts(key))

    @invariant()
    def usage_adds_up(self) -> None:
        for name, one in self.model.all.items():
            if self.images.away and one.chain and one.tree:
                with pytest.raises(MountError):
                    self.real.usage(name)
                continue
            usage, (size, inodes) = self.real.usage(name), self.model.usage(name)
            assert usage.inodes == inodes
            assert usage.bytes == size if one.chain else usage.bytes % 512 == 0

    @rule(name=NAMES, which=PICKS, above=PICKS, has_parent=st.booleans(), labels=LABELS)
    def commit(self, name: str, which: int, above: int, has_parent: bool, labels: dict[str, str]) -> None:
        key, parent = self._one(Kind.ACTIVE, which), self._parent(above) if has_parent else ""
        self._both(
            lambda: self.real.commit(name, key, labels, parent), lambda: self.model.commit(name, key, parent, labels)
        )

    @rule(which=PICKS)
    def remove(self, which: int) -> None:
        children = {one.parent for one in self.model.all.values()}
        name = self._pick([one for one in self.model.all if one not in children], which)
        self._both(lambda: self.real.remove(name), lambda: self.model.remove(name))

    @rule(
        name=NAMES, labels=LABELS, paths=st.lists(st.sampled_from(["x", "y.z", "w"]), max_size=2), whole=st.booleans()
    )
    def update(self, name: str, labels: dict[str, str], paths: list[str], whole: bool) -> None:
        def plain() -> None:
            known = self.model.get(name).labels
            named = labels.keys() | known.keys() if whole or not paths else set(paths)
            kept = {key: value for key, value in known.items() if key not in named}
            self.model.get(name).labels = kept | {key: labels[key] for key in named if key in labels}

        mask = ["labels"] if whole else [f"labels.{path}" for path in paths]
        self._both(lambda: self.real.update(name, labels, mask), plain)

    @rule(which=PICKS, data=st.sampled_from(["one", "two"]))
    def write(self, which: int, data: str) -> None:
        key = self._one(Kind.ACTIVE, which)
        found = self.model.all.get(key)
        if found is not None and found.kind is Kind.ACTIVE:
            (self._own(key) / data).write_text(data)
            found.written.add(data)

    @rule()
    def restart(self) -> None:
        """Nothing is lost with a process that ends in any way: there is nothing in memory that matters."""
        self.real.close()
        self.real = Snapshotter(self.folder / "root", self.images)

    @rule()
    def clean(self) -> None:
        self.real.cleanup()
        ids = {str(self.real.stat(name).id) for name in self.model.all}
        assert {one.name for one in (self.folder / "root/snapshots").iterdir()} <= ids

    @rule()
    def daemon_goes(self) -> None:
        self.images.away = True

    @precondition(lambda self: self.images.away)
    @rule(forgets=st.booleans())
    def daemon_comes_back(self, forgets: bool) -> None:
        self.images.away = False
        if forgets:
            self.images.leases.clear()
        self.images.leases[10_000] = "left by a crash"
        self.real.reconcile()

    @rule(parent=NAMES, kind=st.sampled_from([kind.value for kind in Kind]), negated=st.booleans())
    def choose_by_parent(self, parent: str, kind: str, negated: bool) -> None:
        equal = "!=" if negated else "=="
        found = {one.name for one in self.real.walk([f"kind=={kind},parent{equal}{parent}", "labels.x"])}
        assert found == {
            name
            for name, one in self.model.all.items()
            if (one.kind.value == kind and (one.parent == parent) != negated) or "x" in one.labels
        }

    @rule(name=NAMES, label=st.sampled_from(["", "1"]))
    def choose(self, name: str, label: str) -> None:
        found = {
            one.name for one in self.real.walk([f"name=={name}", f'labels."y.z"=={label or chr(34) * 2},kind==active'])
        }
        wanted = {
            key
            for key, one in self.model.all.items()
            if key == name or (one.labels.get("y.z") == label and one.kind is Kind.ACTIVE)
        }
        assert found == wanted

    @invariant()
    def is_alike(self) -> None:
        found = {
            one.name: (one.kind, one.parent, dict(one.labels), one.layer is not None) for one in self.real.walk([])
        }
        assert found == {
            name: (one.kind, one.parent, one.labels, bool(one.chain)) for name, one in self.model.all.items()
        }
        for name, one in self.model.all.items():
            if not one.chain:
                assert {path.name for path in self._own(name).iterdir()} == one.written
        needing = [
            name
            for name, one in self.model.all.items()
            if one.kind is not Kind.COMMITTED and self.model.lazy_below(name)
        ]
        assert {self.real.stat(name).id for name in needing} == set(self.images.leases)

    def _both(self, real: Callable[[], Any], model: Callable[[], Any]) -> Any:
        """The answer of the real one; None where both raise the same kind of error."""
        try:
            model()
        except StripefsError as error:
            with pytest.raises(type(error)):
                real()
            return None
        return real()

    def _check(self, key: str, mounts: list[Mount]) -> None:
        """Layers are stacked in the order of the parents, the tree of a lazy image comes last."""
        (mount,) = mounts
        chain = self.model.chain(key)
        lazy = self.model.lazy_below(key)
        ordinary = chain[1 : chain.index(lazy)] if lazy else chain[1:]
        lowers = [str(self._own(one)) for one in ordinary]
        if lazy:
            tree = self.model.all[lazy].tree or f"layers of {self.model.all[lazy].chain}"
            self.model.all[lazy].tree = tree
            lowers.append(str(self.folder / tree))
        own, view = str(self._own(key)), self.model.all[key].kind is Kind.VIEW
        options = dict(one.partition("=")[::2] for one in mount.options)
        if mount.type == "bind":
            assert mount.source == (lowers[0] if view and lowers else own)
            assert ("ro" in options) == view
        else:
            assert options["lowerdir"].split(":") == lowers
            assert options.get("upperdir") == (None if view else own)
            assert options.get("workdir") == (None if view else str(self._own(key).with_name("work")))

    def _own(self, name: str) -> Path:
        return self.folder / "root/snapshots" / str(self.real.stat(name).id) / "fs"

    def _parent(self, number: int) -> str:
        return self._pick(["", *(name for name, one in self.model.all.items() if one.kind is Kind.COMMITTED)], number)

    def _one(self, kind: Kind, number: int) -> str:
        return self._pick([name for name, one in self.model.all.items() if one.kind is kind], number)

    @staticmethod
    def _pick(fitting: list[str], number: int) -> str:
        return fitting[-1 - number % len(fitting)] if fitting and number < 80 else ANY[number % len(ANY)]


TestSnapshotters = Snapshotters.TestCase
TestSnapshotters.settings = examples(60, steps=40)
