"""A snapshotter is killed before any step of a call, and one follows: nothing is lost, and nothing is left."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imagefs.snapshotter.metastore import AlreadyExists, Kind, SnapshotNotFound
from imagefs.snapshotter.snapshotter import PARENT_CHAIN, TARGET, Snapshotter
from tests.unit.imagefs.snapshotter.fake_images import HIGHEST, IMAGE, FakeImages
from tests.unit.imagefs.snapshotter.test_snapshotter import layers, lazy

Call = Callable[[Snapshotter], object]

EXTRACTION = {TARGET: "chain3", IMAGE: "lazy", HIGHEST: ""}

CALLS: dict[str, Call] = {
    "prepare": lambda core: core.prepare("new", "two", {}),
    "prepare above a lazy image": lambda core: core.prepare("new", "chain2", {}),
    "view above a lazy image": lambda core: core.view("new", "chain2", {}),
    "prepare a lazy layer": lambda core: core.prepare("new", "chain2", EXTRACTION),
    "prepare a lazy layer in parallel": lambda core: core.prepare("new", "", EXTRACTION | {PARENT_CHAIN: "chain2"}),
    "prepare above a lower lazy layer": lambda core: core.prepare("new", "chain1", {}),
    "commit": lambda core: core.commit("made", "written", {}),
    "remove a container": lambda core: core.remove("written"),
    "remove a view": lambda core: core.remove("seen"),
}


class Killed(BaseException):
    """Ends the call as SIGKILL does. Its clean-up touches the files of a process that is gone."""


class Steps:
    """Counts the steps of a call that others can see. Before the step `last` it copies that and ends the call."""

    def __init__(self, root: Path, images: FakeImages, copy: Path, last: int) -> None:
        self._root, self._images, self._copy, self._left = root, images, copy, last
        self.leases: dict[int, str] | None = None

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            if self.leases is None:
                if self._left == 0:
                    self.leases = dict(self._images.leases)
                    shutil.copytree(self._root, self._copy)
                    raise Killed
                self._left -= 1
            return function(*arguments, **options)

        return counted


class Connection:
    """A connection to a database whose statements are steps."""

    def __init__(self, inner: sqlite3.Connection, steps: Steps) -> None:
        self._inner = inner
        self.execute = steps.before(inner.execute)
        self.executemany = steps.before(inner.executemany)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def killed(folder: Path, call: Call, last: int) -> tuple[FakeImages, bool]:
    """Kill `call` before its step `last`; the images, and whether it came to that. Its files are in `folder`/copy."""
    images = FakeImages(folder)
    core = Snapshotter(folder / "root", images)
    layers(core, "one", "two")
    lazy(core, "chain1", "chain2")
    core.prepare("written", "chain2", {})
    core.view("seen", "chain2", {})
    steps = Steps(folder / "root", images, folder / "copy", last)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("mkdir", "chown", "chmod"):
            patch.setattr(os, name, steps.before(getattr(os, name)))
        for name in ("mount", "build", "release", "forget"):
            patch.setattr(images, name, steps.before(getattr(images, name)))
        patch.setattr(core._store, "_connection", Connection(core._store._connection, steps))
        with contextlib.suppress(Killed, AlreadyExists):
            call(core)
    core.close()
    if steps.leases is None:
        return images, False
    images.leases = steps.leases
    return images, True


def each_kill(tmp_path: Path, call: Call) -> Iterator[tuple[Snapshotter, FakeImages, Path]]:
    """A snapshotter that follows one that was killed, for each step."""
    for last in range(200):
        folder = tmp_path / str(last)
        folder.mkdir()
        images, came = killed(folder, call, last)
        if not came:
            assert last > 3, "no step was counted"
            return
        core = Snapshotter(folder / "copy", images)
        try:
            yield core, images, folder / "copy"
        finally:
            core.close()
    raise AssertionError("the call has no end")


@pytest.mark.parametrize("name", CALLS)
def test_a_snapshotter_that_was_killed_is_put_right(tmp_path: Path, name: str) -> None:
    call = CALLS[name]
    for core, images, root in each_kill(tmp_path, call):
        core.cleanup()
        if name == "commit":
            (found,) = core.walk(["name==written", "name==made"])
            assert (root / "snapshots" / str(found.id) / "fs").is_dir(), "what was written is lost"
        core.reconcile()
        known = {one.id: one for one in core.walk([])}
        directories = {int(path.name) for path in (root / "snapshots").iterdir()}
        needed = {number for number, one in known.items() if one.kind is not Kind.COMMITTED}
        assert needed <= directories <= known.keys()
        on_lazy = {number for number in needed if known[number].parent in ("chain1", "chain2")}
        assert set(images.leases) == on_lazy, "leases that nobody needs, or that are missing"
        for number in needed:
            core.mounts(known[number].name)

        # containerd asks again; what it cannot have made twice it is told of, or finds as it would be.
        try:
            call(core)
        except (AlreadyExists, SnapshotNotFound):
            assert name != "commit" or core.stat("made").kind is Kind.COMMITTED

        for one in reversed(list(core.walk([]))):
            core.remove(one.name)
        core.cleanup()
        assert (list((root / "snapshots").iterdir()), images.leases) == ([], {})
        assert "lazy" in images.forgotten, "the disk is not told that the image is gone"
