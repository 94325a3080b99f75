"""The view in which a striped file is one file: its manifest is read and its parts are not seen.

    stat, scandir    a manifest appears with the file's length, the unit as block size, and an id that is new with every
                     version; hidden names and the pool do not appear (`striped_listing`, `striped_seen`)
    open             a handle that reads the parts (`striped_handle`)
    all that writes  goes to the inner store as it is: whoever removes or renames a manifest moves the whole file

Which entries are manifests is told by their length first (`may_be_manifest`), so of other files one in 4096 of the
small ones is opened in vain; 64 are opened at once, and what they say is kept by their identity. A manifest that cannot
be used is listed with the length it has itself, under an id that no file has: its open says what is wrong.

**Pools.** Parts are named by version and number alone, so a manifest can lead nowhere but into a pool: the one at this
store's root, or one of `trust_pool` when the manifest names it. A manifest that names any other pool is looked for in
our own, which finds the parts of a directory that was moved or is mounted by another name.
"""

from __future__ import annotations

import os
import posixpath
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from stripefs.errors import ConfigError, NotADirectory, NotFound, StaleVersion, StoreError, StripefsError, Transient
from stripefs.layout.hidden import POOL, is_hidden_path
from stripefs.layout.striped import (
    MAGIC,
    MANIFEST_MAX,
    STRIPED_ID,
    Heading,
    Manifest,
    ManifestError,
    may_be_manifest,
)
from stripefs.store.base import Buffer, Handle, Identity, Status, Store, Watch
from stripefs.store.url import parse_url
from stripefs.store.wrappers.base import WrappedHandle, WrappedStore
from stripefs.store.wrappers.striped_handle import PartFiles, StripedHandle
from stripefs.store.wrappers.striped_listing import StripedListing
from stripefs.store.wrappers.striped_seen import Seen, SeenManifests, as_seen, candidate, seen_in, seen_of
from stripefs.units import shown

__all__ = ["StripedStore", "pool_of"]

AT_ONCE = 64
"""Manifests and parts opened at once: a listing waits for the network's round trips, not for its rate."""

T = TypeVar("T")


class StripedStore(WrappedStore):
    """`trust_pool`: absolute paths of further pools (`Manifest.pool`) whose parts may be read.

    `open_pool` answers a store whose root is the directory that holds such a pool, for pools outside of `inner`; it is
    called once for each and the store is closed with this one.
    """

    NAME = "striped"
    PARAMETERS = {}  # noqa: RUF012  # it is not part of URLs

    def __init__(
        self,
        inner: Store,
        trust_pool: Iterable[str | bytes] = (),
        open_pool: Callable[[bytes], Store] | None = None,
    ) -> None:
        super().__init__(inner)
        self.url = inner.url
        self.pool = pool_of(inner.url)
        """Where this store's pool is on its service: what `Manifest.pool` is to say."""
        self._trusted = frozenset(map(os.fsencode, trust_pool))
        self._open_pool = open_pool
        self._pools: dict[bytes, Store] = {}
        self._lock = threading.Lock()
        self._workers = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="striped")
        self._seen = SeenManifests()

    # -- the view ------------------------------------------------------------------------------------------------

    def stat(self, path: bytes) -> Status:
        _refuse_hidden(path)
        status = self.inner.stat(path)
        if not candidate(status):
            return status
        try:
            seen = self._look(path, status)
        except StaleVersion:  # a longer file took its place since
            return self.stat(path)
        if seen.damage:
            raise StoreError(f"{shown(path)}: {seen.damage}", hint=seen.hint)
        return as_seen(status, seen)

    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        _refuse_hidden(path)
        return iter(StripedListing(self.inner, path, after, self._seen, self._workers, AT_ONCE))

    def open(self, path: bytes, expect: Identity | None = None) -> Handle:
        _refuse_hidden(path)
        if expect is not None and STRIPED_ID.search(expect.file_id):
            return self._open_striped(path, expect)
        handle = self.inner.open(path)
        try:
            status, manifest = handle.status, None
            if may_be_manifest(status.length):
                manifest = self._manifest_in(path, handle.read(0, status.length))
                status = as_seen(status, seen_of(manifest))
            if expect is not None and status.identity != expect:
                raise StaleVersion(f"{shown(path)} was replaced or changed")
        except BaseException:
            handle.close()
            raise
        if manifest is not None:
            handle.close()
            return self._striped(path, handle.status, status, manifest)
        return _PlainHandle(handle) if status.length <= MANIFEST_MAX else handle

    def _open_striped(self, path: bytes, expect: Identity) -> Handle:
        """Open what was seen as a striped file: two short questions, where a handle on the manifest takes many.

        The manifest may be a later one than the status; then it names another version than is expected.
        """
        inner = self.inner.stat(path)
        manifest = self._manifest_in(path, self.inner.glance(path, MANIFEST_MAX)) if candidate(inner) else None
        status = as_seen(inner, seen_of(manifest))
        if manifest is None or status.identity != expect:
            raise StaleVersion(f"{shown(path)} was replaced or changed")
        return self._striped(path, inner, status, manifest)

    def readlink(self, path: bytes) -> bytes:
        _refuse_hidden(path)
        return self.inner.readlink(path)

    def manifest(self, path: bytes) -> Manifest | None:
        """The manifest of the striped file at `path`, None for any other file. Raises what `open` raises."""
        if not candidate(self.inner.stat(path)):
            return None
        try:
            return self._manifest_in(path, self.inner.glance(path, MANIFEST_MAX))
        except StaleVersion:  # as in `stat`
            return self.manifest(path)

    def describe(self) -> dict[str, str]:
        return {**self.inner.describe(), "pool of striped files": shown(self.pool)}

    def close(self) -> None:
        self._workers.shutdown(wait=False, cancel_futures=True)
        for store in self._pools.values():
            store.close()
        self.inner.close()

    # -- manifests ---------------------------------------------------------------------------------------------------

    def _look(self, path: bytes, status: Status) -> Seen:
        """What the candidate of `status` at `path` says. Raises what reading it raises."""
        folder = posixpath.dirname(path)
        seen = self._seen.get(folder, status)
        if seen is None:
            seen = seen_in(bytes(self.inner.glance(path, MANIFEST_MAX)))
            self._seen.keep(folder, status, seen)
        return seen

    def _manifest_in(self, path: bytes, document: Buffer) -> Manifest | None:
        """The manifest of which `document` is all; None for another file. Reads its list, where that is outside."""
        data = bytes(document)
        heading = None
        try:
            heading = Heading.from_bytes(data)
            if heading is None:
                return None
            found = heading
            listed = self.in_pool(found.pool, lambda store, pool: _list(store, pool, found)) if found.outside else None
            return Manifest.from_bytes(data, listed)
        except ManifestError as error:
            raise StoreError(f"{shown(path)}: {error.message}", hint=error.hint) from error
        except (NotFound, NotADirectory) as error:
            pool = "" if heading is None else shown(heading.pool)
            raise StoreError(
                f"{shown(path)}: its list of parts is missing",
                hint=f"it was written with the pool {pool}; see --trust-pool",
            ) from error

    def _striped(self, path: bytes, inner: Status, status: Status, manifest: Manifest) -> StripedHandle:
        parts = self.in_pool(manifest.pool, lambda store, pool: PartFiles(store, pool, manifest, shown(path)))

        def current() -> bool:
            try:
                return self.inner.stat(path).identity == inner.identity
            except (NotFound, NotADirectory):
                return False

        return StripedHandle(status, manifest, parts, current, self._workers)

    def foreign(self, pool: bytes) -> bool:
        """Whether the parts of manifests that name this pool lie in another one than this store's own."""
        return pool != self.pool and pool in self._trusted

    def in_pool(self, pool: bytes, work: Callable[[Store, bytes], T]) -> T:
        """`work(store, path of the pool in it)` where the pool that a manifest names is to be looked for."""
        if not self.foreign(pool):
            return work(self.inner, POOL)
        root = self.pool.removesuffix(POOL)
        if pool.startswith(root + b"/"):
            return work(self.inner, pool.removeprefix(root))
        if self._open_pool is None:
            raise StoreError(f"the pool {shown(pool)} cannot be reached from {self.url}")
        with self._lock:
            store = self._pools.get(pool)
        if store is None:
            opened = self._opened(self._open_pool, pool)
            with self._lock:
                store = self._pools.setdefault(pool, opened)
            if store is not opened:
                opened.close()
        return work(store, POOL)

    def _opened(self, open_pool: Callable[[bytes], Store], pool: bytes) -> Store:
        try:
            return open_pool(pool.removesuffix(POOL) or b"/")
        except Transient:
            raise
        except StripefsError as error:
            message = f"the pool {shown(pool)} cannot be reached from {self.url}: {error.message}"
            raise StoreError(message, hint=error.hint) from error


class _PlainHandle(WrappedHandle):
    """A small file that is no manifest, for all its length says: cut or padded manifests must not pass for content."""

    def read(self, offset: int, length: int, *, host: str = "", watch: Watch | None = None) -> Buffer:
        data = self.inner.read(offset, length, host=host, watch=watch)
        if not offset and bytes(memoryview(data)[: len(MAGIC)]) == MAGIC:
            raise StoreError(f"{shown(self.status.name)}: a manifest of a striped file that was cut or changed")
        return data


def pool_of(url: str) -> bytes:
    """Where the pool of the store at `url` is on its service: an absolute path, with a bucket's name in front."""
    try:
        found = parse_url(url)
    except ConfigError:
        return POOL
    bucket = os.fsencode(found.authority) if found.scheme in ("s3", "gs") else b""
    path = posixpath.normpath(b"/" + bucket + b"/" + found.path)
    return b"/" + (path.strip(b"/") + POOL).lstrip(b"/")


def _list(store: Store, pool: bytes, heading: Heading) -> bytes:
    """The list of parts that is not in the manifest."""
    handle = store.open(heading.list_path(pool))
    try:
        if handle.status.length != heading.list_length:
            raise ManifestError("its list of parts has not the length it should have")
        return bytes(handle.read(0, heading.list_length)) if heading.list_length else b""
    finally:
        handle.close()


def _refuse_hidden(path: bytes) -> None:
    if is_hidden_path(path):
        raise NotFound(f"{shown(path)}: no such name")
