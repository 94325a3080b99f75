"""The view in which a striped file is one file: its manifest is read and its parts are not seen.

    stat, scandir    a manifest appears with the file's length, the unit as block size, and an id that is new with every
                     version; hidden names and the pool do not appear (`striped_listing`)
    open             a handle that reads the parts (`striped_handle`)
    all that writes  goes to the inner store as it is: the removal or rename of a manifest is that of the file

Manifests are distinguished from other files by their mark (`Status.marked`), never by their bytes, which users may
choose; 64 are opened at once, and their headings are kept by their identity. A file that bears the mark and is no whole
manifest is listed with the length it has itself, under an id that no file has: its open says what is wrong.

**Pools.** Parts are named by version and number alone, so a manifest can lead nowhere but into a pool: the one at this
store's root, or one of `trust_pool` when the manifest names it. A manifest that names any other pool is looked for in
our own, which finds the parts of a directory that was moved or is mounted by another name.
"""

from __future__ import annotations

import os
import posixpath
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from stripefs.errors import ConfigError, NotADirectory, NotFound, StaleVersion, StoreError, StripefsError, Transient
from stripefs.executor import Lane
from stripefs.format.manifest import MANIFEST_MAX, STRIPED_ID, Manifest, ManifestError, ManifestHeader
from stripefs.format.reserved_names import POOL, is_hidden_path
from stripefs.store.base import Buffer, Handle, Identity, Status, Store
from stripefs.store.striped_handle import PartFiles, StripedHandle
from stripefs.store.striped_listing import (
    UNKNOWN,
    HeaderCache,
    ListedHeader,
    StripedListing,
    as_striped,
    header_in,
    header_of,
    too_long,
)
from stripefs.store.url import parse_url
from stripefs.store.wrapper import WrappedStore
from stripefs.units import shown

__all__ = ["StripedStore", "pool_of"]

AT_ONCE = 64
"""Manifests and parts opened at once: a listing waits for the network's round trips, not for its rate."""

PAGES_AT_ONCE = 16
"""Listings whose next page is asked for before it is wanted."""

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
        """The place of this store's pool on its service, which `Manifest.pool` is to name."""
        self._trusted = frozenset(map(os.fsencode, trust_pool))
        self._open_pool = open_pool
        self._pools: dict[bytes, Store] = {}
        self._lock = threading.Lock()
        # A lane each: a data host that hangs with the parts of one file holds up no listing, and neither any other.
        self._manifests = Lane("manifests", AT_ONCE)
        self._pages = Lane("listing ahead", PAGES_AT_ONCE)
        self._parts = Lane("parts", AT_ONCE)
        self._tables = Lane("tables", AT_ONCE)
        self._seen = HeaderCache()

    # -- the view ------------------------------------------------------------------------------------------------

    def stat(self, path: bytes) -> Status:
        _refuse_hidden(path)
        status = self.inner.stat(path)
        if not status.marked:
            return status
        try:
            seen = self._look(path, status)
        except StaleVersion:  # a longer file took its place since
            return self.stat(path)
        if seen.damage:
            raise StoreError(f"{shown(path)}: {seen.damage}", hint=seen.hint)
        return as_striped(status, seen)

    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        _refuse_hidden(path)
        return iter(StripedListing(self.inner, path, after, self._seen, self._manifests, self._pages, AT_ONCE))

    def open(self, path: bytes, expect: Identity | None = None) -> Handle:
        _refuse_hidden(path)
        if expect is not None and STRIPED_ID.search(expect.file_id):
            return self._open_striped(path, expect)
        # The inner store does not know the id under which a damaged manifest is listed.
        damaged = expect is not None and expect.file_id.endswith(f":{UNKNOWN}")
        handle = self.inner.open(path, None if damaged else expect)
        try:
            status, manifest = handle.status, None
            if status.marked:
                # One byte more than a manifest may have shows that it is none.
                length = min(status.length, MANIFEST_MAX + 1)
                manifest = self.manifest_in(path, handle.read(0, length) if length else b"")
                status = as_striped(status, header_of(manifest))
            if expect is not None and status.identity != expect:
                raise StaleVersion(f"{shown(path)} was replaced or changed")
        except BaseException:
            handle.close()
            raise
        if manifest is None:
            return handle
        handle.close()
        return self._striped(path, handle.status, status, manifest)

    def _open_striped(self, path: bytes, expect: Identity) -> Handle:
        """Open what was seen as a striped file: two short questions, where a handle on the manifest takes many.

        The manifest may be a later one than the status; then it names another version than is expected.
        """
        inner = self.inner.stat(path)
        if not inner.marked:
            raise StaleVersion(f"{shown(path)} was replaced or changed")
        manifest = self._manifest_of(path, inner)
        status = as_striped(inner, header_of(manifest))
        if status.identity != expect:
            raise StaleVersion(f"{shown(path)} was replaced or changed")
        return self._striped(path, inner, status, manifest)

    def readlink(self, path: bytes) -> bytes:
        _refuse_hidden(path)
        return self.inner.readlink(path)

    def manifest(self, path: bytes) -> Manifest | None:
        """The manifest of the striped file at `path`, None for any other file. Raises what `open` raises."""
        status = self.inner.stat(path)
        if not status.marked:
            return None
        try:
            return self._manifest_of(path, status)
        except StaleVersion:  # as in `stat`
            return self.manifest(path)

    def describe(self) -> dict[str, str]:
        return {**self.inner.describe(), "pool of striped files": shown(self.pool)}

    def close(self) -> None:
        for lane in (self._manifests, self._pages, self._parts, self._tables):
            lane.close()
        for store in self._pools.values():
            store.close()
        self.inner.close()

    # -- manifests ---------------------------------------------------------------------------------------------------

    def _look(self, path: bytes, status: Status) -> ListedHeader:
        """The heading of the marked file of `status` at `path`. Raises what reading it raises."""
        folder = posixpath.dirname(path)
        seen = self._seen.get(folder, status)
        if seen is None:
            seen = too_long(status) or header_in(bytes(self.inner.read_small(path, MANIFEST_MAX)))
            self._seen.keep(folder, status, seen)
        return seen

    def _manifest_of(self, path: bytes, status: Status) -> Manifest:
        """The manifest at `path`, which had this status just now; StaleVersion where a longer file took its place."""
        if (damage := too_long(status)) is not None:
            raise StoreError(f"{shown(path)}: {damage.damage}", hint=damage.hint)
        return self.manifest_in(path, self.inner.read_small(path, MANIFEST_MAX))

    def manifest_in(self, path: bytes, document: Buffer) -> Manifest:
        """The manifest of which `document` is all. Reads its list, where that is outside."""
        data = bytes(document)
        heading = None
        try:
            found = heading = ManifestHeader.from_bytes(data)
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

        return StripedHandle(status, manifest, parts, current, self._parts, self._tables)

    def foreign(self, pool: bytes) -> bool:
        """True if the parts of manifests that name this pool lie in another one than this store's own."""
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


def pool_of(url: str) -> bytes:
    """The place of the pool of the store at `url` on its service: an absolute path, with a bucket's name in front."""
    try:
        found = parse_url(url)
    except ConfigError:
        return POOL
    bucket = os.fsencode(found.authority) if found.scheme in ("s3", "gs") else b""
    path = posixpath.normpath(b"/" + bucket + b"/" + found.path)
    return b"/" + (path.strip(b"/") + POOL).lstrip(b"/")


def _list(store: Store, pool: bytes, heading: ManifestHeader) -> bytes:
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
