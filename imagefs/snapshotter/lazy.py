"""The lazy images of a snapshotter: found in stores and mounted by the daemon, which each snapshot has a lease at.

A store is asked by the digest of the image's OCI manifest, which containerd's labels name; after the stores so is the
repository that the image is pulled from, where a lazy image may be attached to it. A daemon or a store that does not
answer means that the image is pulled as any other. A mount is made once for all snapshots of an image; its
lease is named after the snapshot's id, so that asking again, after a restart of either side, changes nothing. The tree
that comes is compared, by chain id, with the layer that it stands for.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from imagefs.daemon.client import Client
from imagefs.daemon.protocol import Lease
from imagefs.errors import BuildError
from imagefs.format.documents import chain_id
from imagefs.repository.store import registry_url
from imagefs.snapshotter.metastore import FailedPrecondition, Layer, SnapshotRecord, Tree, Usage
from imagefs.snapshotter.snapshotter import TARGET, LazyLayer
from imagefs.snapshotter.start_events import NodeEvents, start_of
from stripefs.errors import StripefsError
from stripefs.settings import StoreSettings, redact

__all__ = ["DEPS", "WORKLOAD", "DaemonImages"]

_log = logging.getLogger(__name__)

MANIFEST = "containerd.io/snapshot/cri.manifest-digest"
"""Label of an extraction: the OCI manifest for this machine's platform."""

REFERENCE = "containerd.io/snapshot/cri.image-ref"
"""Label of an extraction: the image's name, as it was pulled."""

LAYER = "containerd.io/snapshot/cri.layer-digest"
"""Label of an extraction: the blob of the layer itself."""

LAYERS = "containerd.io/snapshot/cri.image-layers"
"""Label of an extraction: digests of the layers from this one to the highest, as many as fit."""

WORKLOAD = "containerd.io/snapshot/imagefs.workload"
"""Label or annotation of a container: the name under which its start is recorded and replayed."""

DEPS = "containerd.io/snapshot/imagefs.deps"
"""Label or annotation of a container: dependency snapshots above its image, KEY or STORE#KEY, by commas."""

_NEWER_WITHIN = 1.0
"""Seconds for a store to say whether there is a newer image than the one that was pulled."""

_IMAGEFS = (sys.executable, "-P", "-c", "import sys; from imagefs.cli.main import run; sys.exit(run())")

_FINDS_WITHIN = 5.0
"""Seconds for all stores to say whether they have an image: an ordinary pull waits that long at most."""


_TELLS_AGAIN = 5.0
"""Seconds until a daemon that did not answer is asked again to release what is not needed any more."""


class _Shown(NamedTuple):
    """The mounts that the daemon made for a lease. wanted: the tree, dependency snapshots and workload. devices: st_dev
    of each lowerdir: where nothing is mounted any more, it is that of the directory below."""

    wanted: tuple[Tree, str, str]
    lowerdirs: Sequence[str]
    devices: Sequence[int]

    def stands(self) -> bool:
        """Tells whether all of it is mounted still, so that the daemon need not be asked."""
        return 0 not in self.devices and list(self.devices) == _devices(self.lowerdirs)


class DaemonImages:
    """The `LazyImages` of `stores`, URLs of which the first is preferred, mounted by the daemon of `client`.

    store_at: how the store at a URL is reached. registries: whether the image's own registry is asked too, and
    plain_http: with which of them, as HOST[:PORT], plain http is spoken, beside those on this machine.
    name: of this snapshotter among those that share the daemon. built: folder of a store for trees that are built here.
    deps: where dependency snapshots are that name no store. events: of the snapshotter.
    Used by several threads.
    """

    def __init__(
        self,
        client: Client,
        stores: Sequence[str],
        store_at: Callable[[str], StoreSettings],
        *,
        name: str,
        built: Path,
        deps: str = "",
        registries: bool = False,
        plain_http: Sequence[str] = (),
        events: NodeEvents | None = None,
    ) -> None:
        self._client = client
        self._stores = [store_at(url) for url in stores]
        self._store_at = store_at
        self._name = name
        self._built = StoreSettings(url=str(built))
        self._deps = deps
        self._registries = registries
        self._plain_http = frozenset(plain_http)
        self._events = events or NodeEvents()
        self._builds: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._lock = threading.Lock()
        self._leased: set[int] = set()
        self._shown: dict[int, _Shown] = {}
        self._parts: dict[str, frozenset[str]] = {}  # by image; what an image is made of never changes
        # Leases and trees that a thread tells the daemon of: a daemon that does not answer must not hold up requests.
        self._overdue: set[int] = set()
        self._forgotten: dict[Tree, Callable[[], Collection[Tree]]] = {}
        self._building = 0  # builds under way; while there are any nothing is removed from their store, and vice versa
        self._removing = False
        self._changed = threading.Condition(self._lock)
        self._closed = threading.Event()
        threading.Thread(target=self._tell_all, name="leases", daemon=True).start()

    def close(self) -> None:
        """Tell the daemon nothing more. Leases of snapshots that are gone are released after the next start."""
        with self._changed:
            self._closed.set()
            self._changed.notify_all()

    def find(self, labels: Mapping[str, str]) -> LazyLayer | None:
        manifest = labels.get(MANIFEST, "")
        if not manifest:
            return None
        tree = self._look(manifest, labels.get(REFERENCE, ""))
        if tree is None:
            return None
        layer = Layer(labels.get(TARGET, ""), labels.get(REFERENCE, ""), manifest)
        return LazyLayer(layer, tree if _is_highest(labels) else None)

    def tree(self, layer: Layer, depth: int, known: Tree | None) -> Tree:
        if known is not None:
            if known.store == self._built.url:
                return known
            return self._look(layer.manifest, layer.source, _NEWER_WITHIN) or known
        return self._look(layer.chain, "") or self.build(layer, depth)

    def mount(self, layer: Layer, tree: Tree, snapshot: SnapshotRecord) -> list[str]:
        deps, workload = snapshot.labels.get(DEPS, ""), snapshot.labels.get(WORKLOAD) or "default"
        wanted = (tree, deps, workload)
        with self._lock:
            self._leased.add(snapshot.id)
            shown = self._shown.get(snapshot.id)
        if shown is not None and shown.wanted == wanted and shown.stands():
            return list(shown.lowerdirs)
        with self._events.part("attach", snapshot.labels, key=snapshot.name, image=tree.image) as part:
            start = start_of(snapshot.labels)
            held = self._client.hold(
                self._settings(tree.store),
                tree.image,
                Lease(str(snapshot.id), self._name, snapshot.name),
                workload=workload,
                above=[self._deps_of(one) for one in deps.split(",") if one],
                start=start | {"parent": part.span} if part.span else start,
            )
        for one in held.unusable:
            _log.warning("%s starts without the dependency snapshot %s: %s", snapshot.name, one.key, one.why)
        if layer.chain != (found := chain_id(held.config)):
            raise BuildError(
                f"the image {tree.image[:12]} in {redact(tree.store)} is of other layers than {layer.chain} ({found})",
                hint="build it again from the image that is pulled",
            )
        shown = _Shown(wanted, held.lowerdirs, _devices(held.lowerdirs))
        with self._lock:
            if snapshot.id in self._leased:
                self._shown[snapshot.id] = shown
        return list(held.lowerdirs)

    def release(self, snapshot: int) -> None:
        """Returns before the daemon knows."""
        with self._changed:
            if snapshot in self._leased:
                self._leased.discard(snapshot)
                self._shown.pop(snapshot, None)
                self._overdue.add(snapshot)
                self._changed.notify_all()

    def forget(self, tree: Tree, needed: Callable[[], Collection[Tree]]) -> None:
        """Returns before the daemon knows."""
        with self._changed:
            self._forgotten[tree] = needed
            self._changed.notify_all()

    def mounted(self) -> set[int]:
        """Raises MountError where the daemon does not answer."""
        found = {int(held.lease.name) for held in self._client.leases(self._name)}
        with self._lock:
            self._leased |= found - self._overdue
            for gone in self._shown.keys() - found:
                del self._shown[gone]
        return found

    def usage(self, tree: Tree, others: Collection[Tree]) -> Usage:
        """Raises MountError where the daemon does not answer."""
        counted = self._usage_of(tree.image)
        if counted:
            shared = self._parts_of(others)
            counted = {part: figures for part, figures in counted.items() if part not in shared}
        return Usage(sum(size for size, _ in counted.values()), sum(inodes for _, inodes in counted.values()))

    def _usage_of(self, image: str) -> dict[str, tuple[int, int]]:
        """Bytes and inodes by part; nothing of an image whose manifest is not on this host."""
        parts = self._client.usage(image)
        if parts:
            with self._lock:
                self._parts[image] = frozenset(parts)
        return parts

    def _parts_of(self, trees: Collection[Tree]) -> frozenset[str]:
        """Names of the parts of all these trees."""
        images = {tree.image for tree in trees}
        with self._lock:
            known = {image: self._parts[image] for image in images & self._parts.keys()}
        for image in images - known.keys():
            known[image] = frozenset(self._usage_of(image))
        return frozenset().union(*known.values())

    def _look(self, digest: str, reference: str, timeout: float = _FINDS_WITHIN) -> Tree | None:
        asked = [*self._stores, *self._own_registry(reference)]
        if not asked:
            return None
        try:
            found = self._client.find(asked, digest, timeout)
        except StripefsError as error:
            _log.warning("%s is pulled in full, the daemon cannot look for it: %s", reference or digest, error)
            return None
        return Tree(found.store.url, found.image) if found is not None else None

    def _own_registry(self, reference: str) -> list[StoreSettings]:
        """The repository that the image is pulled from, unless it is one of the stores; none where it is not asked."""
        host, _, name = (repository := _repository(reference)).partition("/")
        if not self._registries or not name or not ("." in host or ":" in host or host == "localhost"):
            return []
        url = registry_url(host, name, scheme="http" if self._is_plain(repository) else "", lookup="brief")
        known = {store.url.partition("?")[0] for store in self._stores}
        return [] if url.partition("?")[0] in known else [self._store_at(url)]

    def _is_plain(self, repository: str) -> bool:
        """Tells whether plain http is spoken with the registry of `host/name`, as containerd does on this machine."""
        host = repository.partition("/")[0]
        return host in self._plain_http or (host.rpartition(":")[0] or host) in ("localhost", "127.0.0.1", "[::1]")

    def build(self, layer: Layer, depth: int) -> Tree:
        with self._builds[layer.chain]:
            with self._changed:
                self._changed.wait_for(lambda: not self._removing)
                self._building += 1
            try:
                return self._build(layer, depth)
            finally:
                with self._changed:
                    self._building -= 1

    def _build(self, layer: Layer, depth: int) -> Tree:
        if not layer.source:
            raise FailedPrecondition(f"the layer {layer.chain} is not here, and nothing says where it is to be fetched")
        _log.info("fetching the %d lowest layers of %s: another image shares them", depth, layer.source)
        repository = _repository(layer.source)
        command = ["build", "--quiet", "--layers", str(depth), f"docker://{repository}@{layer.manifest}"]
        command += [self._built.url, *(["--no-src-tls-verify"] if self._is_plain(repository) else [])]
        done = _run(command)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise BuildError(
                f"the layers of {layer.chain} cannot be fetched: {lines[-1]}",
                hint="this host's registry credentials (docker login) are used for that",
            )
        return Tree(self._built.url, done.stdout.strip())

    def _settings(self, url: str) -> StoreSettings:
        return self._built if url == self._built.url else self._store_at(url)

    def _deps_of(self, text: str) -> tuple[StoreSettings, str]:
        url, _, key = text.rpartition("#")
        if not (url := url or self._deps):
            raise FailedPrecondition(f"{DEPS}={text} names no store", hint="write STORE#KEY, or configure deps.store")
        return self._settings(url), key

    def _tell_all(self) -> None:
        """Release leases and forget trees, as they come, until `close`."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._overdue or self._forgotten or self._closed.is_set())
                if self._closed.is_set():
                    return
            all_told = False
            try:
                all_told = self._tell()
            except StripefsError as error:
                _log.warning("the daemon does not take what is not needed any more: %s", error)
            except Exception:  # noqa: BLE001  the database of the snapshots may fail; the next try may go well
                if self._closed.is_set():
                    return
                _log.exception("images that are not needed any more could not be released")
            if not all_told:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed.is_set(), _TELLS_AGAIN)

    def _tell(self) -> bool:
        """Tell the daemon; False where something has to wait for a build. Raises MountError where it does not answer;
        releases that it missed follow later."""
        with self._lock:
            overdue, forgotten, all_told = list(self._overdue), list(self._forgotten.items()), True
        for number in overdue:
            self._client.release(Lease(str(number), self._name))
            with self._lock:
                self._overdue.discard(number)
        for tree, needed in forgotten:
            left = needed()
            if all(one.image != tree.image for one in left):
                own = self._parts_of([tree])
                self._client.discard(tree.image, own - self._parts_of(left))
            if tree.store == self._built.url and not self._remove_built(tree, needed):
                all_told = False
                continue
            with self._lock:
                if self._forgotten.get(tree) is needed:
                    del self._forgotten[tree]
                self._parts.pop(tree.image, None)
        return all_told

    def _remove_built(self, tree: Tree, needed: Callable[[], Collection[Tree]]) -> bool:
        """Take an image that was built here off the disk, if no snapshot has it; False while something is built."""
        with self._lock:
            if self._building:
                return False
            self._removing = True
        try:
            if tree not in needed():
                for command in (["rm", f"{tree.store}#{tree.image}"], ["gc", "--quiet", "--force", tree.store]):
                    done = _run(command)
                    if done.returncode:
                        _log.warning("the image %s stays in %s: %s", tree.image[:12], tree.store, done.stderr.strip())
                        break
        finally:
            with self._changed:
                self._removing = False
                self._changed.notify_all()
        return True


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """`imagefs COMMAND`, to its end."""
    return subprocess.run([*_IMAGEFS, *command], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def _devices(paths: Sequence[str]) -> list[int]:
    """st_dev of each path, 0 where it is not there."""
    found = []
    for path in paths:
        try:
            found.append(os.stat(path).st_dev)
        except OSError:
            found.append(0)
    return found


def _repository(reference: str) -> str:
    """`host/name` of `host/name:tag@digest`."""
    name, _, tag = reference.partition("@")[0].rpartition(":")
    return name if name and "/" not in tag else reference.partition("@")[0]


def _is_highest(labels: Mapping[str, str]) -> bool:
    """Tells whether the layer of an extraction is the last of its image. containerd lists those that follow it."""
    layer, layers = labels.get(LAYER, ""), labels.get(LAYERS, "")
    return bool(layer) and layers == layer
