"""The snapshotter without gRPC: what containerd's snapshots service promises, over a database and directories.

    ROOT/metadata.db               the snapshots (`imagefs.snapshotter.metastore`)
    ROOT/snapshots/ID/fs           the files of an ordinary snapshot: a layer's, or those that a container wrote
    ROOT/snapshots/ID/work         overlayfs's working directory of an active one

The layers of an image that a store has are *lazy*: they are committed without files, so that containerd takes them for
present and fetches nothing. A snapshot above a lazy one has the tree of the whole image as its last lowerdir, which the
daemon mounts once for all. Only the highest layer of an image has that image's tree. A lower one may be needed by
itself where another image shares it: its tree is then looked for by its chain id, and built from its layers at last.

The database changes before a directory is made known, and after one was emptied; what a crash leaves beside the
database is removed by `cleanup`. Threads: any; calls on one name are put in order by the database.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from imagefs.errors import DamagedObject, NoSuchImage
from imagefs.snapshotter.filters import Fields, compile_filters
from imagefs.snapshotter.metastore import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    Kind,
    Layer,
    Metastore,
    SnapshotNotFound,
    SnapshotRecord,
    Tree,
    Usage,
)
from imagefs.snapshotter.start_events import NodeEvents
from stripefs.errors import StripefsError

__all__ = ["LazyImages", "LazyLayer", "Mount", "Snapshotter"]

_log = logging.getLogger(__name__)

TARGET = "containerd.io/snapshot.ref"
"""Label of a Prepare for an extraction: the name that the committed layer is to have, its chain id."""

PARENT_CHAIN = "containerd.io/snapshot/parent-chain-id"
"""Label of an extraction of containerd 2.3 or later. Where it is given and no parent is, layers are unpacked side by
side, and the parent comes with the Commit."""

_LABEL_LIMIT = 4096
"""Bytes of a label's key and value together, as containerd checks it."""


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount(2) that shows a snapshot."""

    type: str
    source: str
    options: tuple[str, ...]


class LazyLayer(NamedTuple):
    """A layer of an image that a store has. tree: that of the image where this is its highest layer, else None."""

    layer: Layer
    tree: Tree | None = None


class LazyImages(Protocol):
    """The images that stores have. Errors are StripefsErrors."""

    def find(self, labels: Mapping[str, str]) -> LazyLayer | None:
        """The layer of an extraction with these labels; None where no store has its image, or none can be asked."""

    def tree(self, layer: Layer, depth: int, known: Tree | None) -> Tree:
        """The newest tree of a lazy layer and all below it, `depth` layers; `known` is the last one, if there was any.

        May take minutes where none is to be found and the layers are fetched.
        """

    def build(self, layer: Layer, depth: int) -> Tree:
        """Fetch these layers from the image's registry. May take minutes."""

    def mount(self, layer: Layer, tree: Tree, snapshot: SnapshotRecord) -> list[str]:
        """Lowerdirs, the nearest first, that show the tree, of the lazy layer and all below it, for this snapshot until
        `release`. Asked twice it is one. Raises BuildError for the tree of other layers."""

    def release(self, snapshot: int) -> None:
        """The snapshot with this id needs its trees no more, if it had any. Raises nothing: it is tried again."""

    def forget(self, tree: Tree, needed: Callable[[], Collection[Tree]]) -> None:
        """No snapshot is of this tree any more: its files leave this host's disk, but those that trees in `needed()`
        share. Raises nothing."""

    def usage(self, tree: Tree, others: Collection[Tree]) -> Usage:
        """Bytes and inodes on this host's disk that the image takes, without the files that `others` have too."""

    def mounted(self) -> set[int]:
        """Ids of the snapshots that have trees, from this run and from earlier ones."""


class Snapshotter:
    """All snapshots below `root`. events: of the snapshotter."""

    def __init__(self, root: Path, images: LazyImages, events: NodeEvents | None = None) -> None:
        self._events = events or NodeEvents()
        self._directories = root / "snapshots"
        self._directories.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._images = images
        self._store = Metastore(root / "metadata.db")
        # An empty lowerdir for a parallel unpack: overlayfs needs one, and the layer has no parent yet.
        self._empty = root / "empty"
        self._empty.mkdir(mode=0o755, exist_ok=True)
        self._lock = threading.Lock()
        self._prepared = dict.fromkeys(("lazy", "ordinary", "fallback"), 0)

    def close(self) -> None:
        self._store.close()

    # -- making --------------------------------------------------------------------------------------------------

    def prepare(self, key: str, parent: str, labels: Mapping[str, str]) -> list[Mount]:
        """Make an active snapshot. Raises AlreadyExists too where the layer that it is for need not be extracted."""
        _check_labels(labels)
        target = labels.get(TARGET, "")
        with self._events.part("prepare", labels, key=key) as part:
            layer = self._images.find(labels) if target else None
            if target:
                part.facts["misses" if layer is None else "hits"] = 1
            if layer is not None and not _is_parallel(labels, parent):
                self._adopt(target, parent, labels, layer)
                mounts = None
            else:
                mounts = self._make(key, parent, Kind.ACTIVE, labels, layer)
        with self._lock:
            self._prepared["lazy" if layer is not None else "fallback" if target else "ordinary"] += 1
        if mounts is None:
            raise AlreadyExists(f"the layer {target} is of an image that a store has")
        return mounts

    def view(self, key: str, parent: str, labels: Mapping[str, str]) -> list[Mount]:
        """Make a snapshot that nobody writes to."""
        _check_labels(labels)
        return self._make(key, parent, Kind.VIEW, labels)

    def commit(self, name: str, key: str, labels: Mapping[str, str], parent: str = "") -> None:
        """Keep what was written to an active snapshot, under a name of its own."""
        _check_labels(labels)
        active = self._store.get(key)
        measured = active.kind is Kind.ACTIVE and active.layer is None
        usage = _usage_of(self._files(active)) if measured else Usage()
        self._store.commit(name, key, labels, usage, parent)
        self._images.release(active.id)

    def _adopt(self, target: str, parent: str, labels: Mapping[str, str], layer: LazyLayer) -> None:
        """Have a committed snapshot for a layer of a lazy image. One that is there is the same."""
        try:
            self._store.create(target, parent, Kind.COMMITTED, labels, layer=layer.layer, tree=layer.tree)
        except AlreadyExists:
            try:
                found = self._store.get(target)
            except SnapshotNotFound:  # containerd looks for it then, and tries again
                raise AlreadyExists(f"the layer {target} was removed meanwhile") from None
            if found.kind is not Kind.COMMITTED or found.parent != parent:
                raise
            if found.layer is not None and found.tree is None and layer.tree is not None:
                self._store.found(target, layer.tree)

    def _make(
        self, key: str, parent: str, kind: Kind, labels: Mapping[str, str], staged: LazyLayer | None = None
    ) -> list[Mount]:
        layer, tree = staged or (None, self._known_tree(parent))
        made = self._store.create(key, parent, kind, labels, layer=layer, tree=tree)
        try:
            self._make_directories(made)
            lowers = self._lowerdirs(made)
            if lowers:
                _copy_owner(lowers[0], self._files(made))
            return self._mounts(made, lowers)
        except BaseException:
            self._unmake(made)
            raise

    def _known_tree(self, parent: str) -> Tree | None:
        """The tree of the image that a snapshot on `parent` stands on, where the known one is the newest."""
        try:
            below = self._store.chain(parent) if parent else []
        except SnapshotNotFound:
            return None  # the maker of the snapshot gets the error then
        for number, one in enumerate(below):
            if one.layer is not None and one.tree is not None:
                newest = self._images.tree(one.layer, len(below) - number, one.tree)
                return one.tree if newest == one.tree else None
            if one.layer is not None:
                return None
        return None

    def _make_directories(self, snapshot: SnapshotRecord) -> None:
        """Make the missing directories of an active snapshot or a view."""
        directory = self._directory(snapshot)
        (directory / "fs").mkdir(mode=0o755, parents=True, exist_ok=True)
        if snapshot.kind is Kind.ACTIVE:
            (directory / "work").mkdir(mode=0o711, exist_ok=True)

    def _unmake(self, made: SnapshotRecord) -> None:
        """Take away a snapshot whose making failed. Raises nothing: its caller has an error to tell already."""
        shutil.rmtree(self._directory(made), ignore_errors=True)  # first: a full disk may have no room for the database
        self._images.release(made.id)
        try:
            self._store.remove(made.name, made.id)
        except SnapshotNotFound:
            return  # removed meanwhile, by its client
        except Exception:  # noqa: BLE001
            _log.exception("the snapshot %s, which could not be made, stays until containerd removes it", made.name)

    # -- asking --------------------------------------------------------------------------------------------------

    def mounts(self, key: str) -> list[Mount]:
        """The mounts that show an active snapshot or a view. Raises FailedPrecondition for a committed one."""
        found = self._store.get(key)
        if found.kind is Kind.COMMITTED:
            raise FailedPrecondition(f"{key} is committed and has no mounts")
        return self._mounts(found, self._lowerdirs(found))

    def stat(self, name: str) -> SnapshotRecord:
        return self._store.get(name)

    def usage(self, name: str) -> Usage:
        """The space that the snapshot itself takes on this host now, without its parents.

        The highest layer of a lazy image has what the whole image takes in the cache; the layers below it have nothing.
        A file that several images share counts for the oldest snapshot alone, so that the sum is what the disk holds.
        """
        found = self._store.get(name)
        if found.layer is not None:
            return self._images.usage(found.tree, self._store.trees(found.id)) if found.tree is not None else Usage()
        return _usage_of(self._files(found)) if found.kind is Kind.ACTIVE else found.usage

    def walk(self, filters: Sequence[str]) -> Iterator[SnapshotRecord]:
        """The snapshots that any of these containerd filters matches. Raises InvalidArgument."""
        matches = compile_filters(filters)
        for one in self._store.all():
            if matches(Fields(one.name, one.parent, one.kind.value, one.labels)):
                yield one

    def figures(self) -> dict[str, dict[str, int]]:
        """Counts for metrics. snapshots: by kind; lazy: those of them that are layers of lazy images or stand on one.
        prepared: Prepares since the start: of layers that a store has (`lazy`), of layers that are pulled in full
        (`fallback`), and of snapshots that no layer is extracted to (`ordinary`)."""
        with self._lock:
            prepared = dict(self._prepared)
        return {**self._store.counts(), "prepared": prepared}

    # -- changing ------------------------------------------------------------------------------------------------

    def update(self, name: str, labels: Mapping[str, str], paths: Sequence[str]) -> SnapshotRecord:
        """Give labels: those that `paths` name (`labels.KEY`), or all where it is empty or says `labels`."""
        wanted = labels
        if paths and "labels" not in paths:
            known = dict(self._store.get(name).labels)
            for path in paths:
                head, dot, key = path.partition(".")
                if head != "labels" or not dot or not key:
                    raise InvalidArgument(f"{path} of a snapshot cannot be changed")
                if key in labels:
                    known[key] = labels[key]
                else:
                    known.pop(key, None)
            wanted = known
        _check_labels(wanted)
        return self._store.relabel(name, wanted)

    def remove(self, name: str) -> None:
        """Take a snapshot away; its files go with the next `cleanup`."""
        removed = self._store.remove(name)
        self._images.release(removed.id)
        if removed.tree is not None:
            self._forget(removed.tree)

    def _forget(self, tree: Tree) -> None:
        """A snapshot has this tree no more. A tree that no snapshot has leaves the disk."""
        if tree not in self._store.trees():
            self._images.forget(tree, self._store.trees)

    def reconcile(self) -> None:
        """Mount again what snapshots need and the daemon has no more, and release what no snapshot needs.

        To be called after a start, and now and then: the daemon may be another one by now. An image that cannot be
        mounted is told in the log, and tried again by the next call and by `mounts`. Raises StripefsError where the
        daemon does not answer.
        """
        mounted = self._images.mounted()  # before the database: a row is older than its mount
        needing = [one for one in self._store.all() if one.kind is not Kind.COMMITTED]
        for number in mounted - {one.id for one in needing}:
            self._images.release(number)
        for one in needing:
            if one.id not in mounted:
                try:
                    self._lowerdirs(one)
                except SnapshotNotFound:
                    continue  # removed meanwhile
                except (StripefsError, OSError) as error:
                    _log.warning("the snapshot %s has no tree for now: %s", one.name, error)

    def cleanup(self) -> None:
        """Remove the files of snapshots that are no more, and make directories that a crash in a Prepare left out.
        Raises OSError."""
        present = list(os.scandir(self._directories))  # before the database: a row is older than its directory
        known = self._store.all()
        names = {str(one.id) for one in known}
        for entry in present:
            if entry.name not in names:
                shutil.rmtree(entry.path, onerror=_complain)
        for one in known:
            if one.kind is not Kind.COMMITTED:
                self._make_directories(one)

    # -- files ---------------------------------------------------------------------------------------------------

    def _directory(self, snapshot: SnapshotRecord) -> Path:
        return self._directories / str(snapshot.id)

    def _files(self, snapshot: SnapshotRecord) -> Path:
        return self._directory(snapshot) / "fs"

    def _mounts(self, snapshot: SnapshotRecord, lowers: Sequence[str]) -> list[Mount]:
        own = str(self._files(snapshot))
        if snapshot.kind is Kind.ACTIVE and snapshot.layer is None:
            if not lowers and not _is_parallel(snapshot.labels, snapshot.parent):
                return [Mount("bind", own, ("rw", "rbind"))]
            layers = (
                f"lowerdir={':'.join(lowers or [str(self._empty)])}",
                f"upperdir={own}",
                f"workdir={self._directory(snapshot) / 'work'}",
            )
            return [Mount("overlay", "overlay", layers)]
        if len(lowers) < 2:
            # Of a lazy layer it says, by "ro", that there is nothing to extract.
            return [Mount("bind", lowers[0] if lowers else own, ("ro", "rbind"))]
        return [Mount("overlay", "overlay", (f"lowerdir={':'.join(lowers)}",))]

    def _lowerdirs(self, snapshot: SnapshotRecord) -> list[str]:
        """Directories of the snapshot's parents, the nearest first; the tree of a lazy image ends them."""
        found: list[str] = []
        below = self._store.chain(snapshot.name)[1:]
        if snapshot.layer is not None:
            return found
        for number, one in enumerate(below):
            if one.layer is not None:
                return found + self._trees(snapshot, one, one.layer, len(below) - number)
            found.append(str(self._files(one)))
        return found

    def _trees(self, snapshot: SnapshotRecord, lazy: SnapshotRecord, layer: Layer, depth: int) -> list[str]:
        """Lowerdirs of `depth` lazy layers. A snapshot keeps the tree that it was mounted with first."""
        tree = snapshot.tree or self._images.tree(layer, depth, lazy.tree)
        try:
            lowers = self._images.mount(layer, tree, snapshot)
        except (DamagedObject, NoSuchImage) as error:
            _log.warning("%s is fetched from its registry: %s", layer.source, error)
            tree = self._images.build(layer, depth)
            lowers = self._images.mount(layer, tree, snapshot)
        for one in (lazy, snapshot):
            if one.tree != tree:
                self._store.found(one.name, tree)
                if one.tree is not None:
                    self._forget(one.tree)
        return lowers


def _is_parallel(labels: Mapping[str, str], parent: str) -> bool:
    return PARENT_CHAIN in labels and not parent


def _check_labels(labels: Mapping[str, str]) -> None:
    for key, value in labels.items():
        if len(key.encode()) + len(value.encode()) > _LABEL_LIMIT:
            raise InvalidArgument(f"the label {key:.80} and its value are longer than {_LABEL_LIMIT} bytes")


def _copy_owner(source: str, target: Path) -> None:
    """overlayfs shows the owner and mode of the uppermost root directory."""
    found = os.stat(source)
    os.chown(target, found.st_uid, found.st_gid)
    os.chmod(target, found.st_mode & 0o7777)


def _usage_of(path: Path) -> Usage:
    """Bytes on disk and inodes below a directory, itself included; a file with several names counts once."""
    size, seen = 0, set()
    waiting: list[str] = [str(path)]
    while waiting:
        folder = waiting.pop()
        try:
            own = os.lstat(folder)
            entries = list(os.scandir(folder))
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed or replaced meanwhile
        for found in (own, *_stats(entries)):
            if (found.st_dev, found.st_ino) not in seen:
                seen.add((found.st_dev, found.st_ino))
                size += found.st_blocks * 512
        waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return Usage(size, len(seen))


def _stats(entries: Sequence[os.DirEntry[str]]) -> Iterator[os.stat_result]:
    for entry in entries:
        try:
            yield entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue


def _complain(_function: Callable[..., object], path: str, error: object) -> None:
    _log.warning("%s stays until the next clean-up: %s", path, error)
