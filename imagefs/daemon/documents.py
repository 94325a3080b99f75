"""Documents of images brought to this machine, and the bounds of the cache: of bytes for documents, of age for all.

Documents come in threads, each once at a time, tried again while the store is away. One that is here and whole is taken
as it is, so an image that was used before needs no store. Any failure is an error of ours: of the store, of a
document, or of the cache's disk.

Blocks are bounded in bytes where they are kept (`imagefs.blocks.eviction`). Documents and devices that were not used
for longer than the age are removed, also where there is room: whole devices with their blocks, then documents, plans
and traces. A device is used when it is attached, and when the daemon reads its blocks; what is in use never goes, and
counts as used until it is released.

A snapshotter tells which parts of an image it needs no more. Those go as soon as nothing on this host uses them. The
list of them is in memory: what a worker that ends has not removed is bounded like everything else.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

import trio

from imagefs.blocks.source import PackSource
from imagefs.blocks.store import BlockStore
from imagefs.daemon.metadata_cache import MetadataCache
from imagefs.daemon.requests import UsageAnswer, UsageRequest
from imagefs.format import is_digest
from imagefs.format.documents import Manifest, Metadata
from imagefs.format.index import Index, Pack
from imagefs.format.trace import Plan
from imagefs.repository.images import Images
from imagefs.repository.snapshots import Note, Snapshots
from imagefs.repository.store import is_registry
from imagefs.repository.traces import load_plan, other_plans
from stripefs.background import supervise
from stripefs.errors import Abandoned, MountError, ServiceDown, StoreError, StripefsError
from stripefs.executor import Executor
from stripefs.fuse.control_server import newer_worker
from stripefs.store.url import parse_url, prepare

__all__ = ["CacheUpkeep", "Documents"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_Other = TypeVar("_Other")
_Args = TypeVarTuple("_Args")
_LIGHT = ("http",)
"""Schemes whose clients are loaded ahead wherever a daemon runs: 9 MiB; S3's takes 42."""

_RESOLVING = 2
"""Threads that ask one store again for the digests of tags, and as many again in place of those that hang;
when all hang, the store's last answer is taken at once."""

_RESOLVE_WITHIN = 5.0
"""Seconds for a store to say what a tag stands for, when it answered before and may be out of reach now."""


class Documents:
    """The documents in `cache`, and in stores. A store that does not answer within `timeout` seconds is away."""

    def __init__(self, cache: MetadataCache, timeout: float) -> None:
        self._cache = cache
        self._timeout = timeout
        self._under_way = Executor(timeout)
        self._disk = self._under_way.lane("disk")
        # Each store has threads of its own: those of one that hangs never come back.
        self._calls: WeakKeyDictionary[PackSource, Executor] = WeakKeyDictionary()
        self._resolving: WeakKeyDictionary[PackSource, Executor] = WeakKeyDictionary()

    async def resolve(
        self, source: PackSource, name: str, look: Callable[[Images], str] | None = None
    ) -> tuple[str, bool]:
        """The digest of an image, and whether the store could not be asked and this is what it said last time.

        look: how it is asked; for a tag or digest unless given. Raises what that raises.
        """
        if is_digest(name):
            return name, False
        remembered = await self._local(self._cache.remembered, source.url, name)
        calls = self._resolving_at(source) if remembered else self._calls_to(source)
        try:
            digest = await calls.call(
                f"asking {source.url} for {name}",
                _careful,
                lambda: look(source.images()) if look is not None else source.images().resolve(name),
            )
        except StoreError as error:
            if not remembered:
                raise
            _log.warning("%s; taking %s for what it was: %s", error, name, remembered[:12])
            return remembered, True
        if digest != remembered:
            what = f"what {name} stands for is not remembered"
            await self._tolerant(what, None, self._cache.remember, source.url, name, digest)
        return digest, False

    async def manifest(self, digest: str, source: PackSource) -> Manifest:
        return await self.once(
            ("image", digest),
            lambda: self._fetch(f"image {digest[:12]}", source, lambda: self._cache.manifest(digest, source.images)),
        )

    async def metadata(self, entry: Metadata, source: PackSource) -> Path:
        """The path of the EROFS image."""
        return await self.once(
            entry,
            lambda: self._fetch("an image's metadata", source, lambda: self._cache.metadata(entry, source.images)),
        )

    def metadata_path(self, entry: Metadata) -> Path:
        """The path at which it lies, or will."""
        return self._cache.metadata_path(entry)

    async def index(self, digest: str, source: PackSource) -> Index:
        return await self.once(
            digest, lambda: self._fetch("a block index", source, lambda: self._cache.index(digest, source.images))
        )

    async def check_packs(self, packs: Sequence[Pack], source: PackSource) -> None:
        """Raises DamagedObject where the store lacks one of them."""
        await self._fetch("the packs of an image", source, lambda: source.images().check_packs(packs))

    async def plan(self, image: str, workload: str, folder: Path, source: PackSource) -> Plan | None:
        """The plan from earlier starts of the image; `folder` is where it is kept while stores cannot be written."""
        return await self._fetch("a plan", source, lambda: load_plan(source.images(), image, workload, folder))

    async def other_plans(self, image: str, workload: str, folder: Path, source: PackSource) -> list[Plan]:
        """Plans of the image's other workloads (`imagefs.repository.traces.other_plans`), none where that fails."""
        what = "plans of other workloads"
        try:
            return await self._fetch(what, source, lambda: other_plans(source.images(), image, workload, folder))
        except StripefsError as error:
            _log.info("%s of %s are not known: %s", what, image[:12], error)
            return []

    async def note(self, source: PackSource, kind: Note, name: str) -> bytes:
        """A note of a start for later ones; nothing where the store has none."""
        return await self._fetch("a note", source, lambda: Snapshots(source.images()).note(kind, name))

    async def note_use(self, source: PackSource, name: str, hint: tuple[str, str] | None = None) -> None:
        """Say in the store that a dependency snapshot is used, where that can be said. hint: one to be stored there,
        by its name."""

        def note() -> None:
            snapshots = Snapshots(source.images())
            snapshots.mark_used(name)
            if hint is not None:
                snapshots.put_note("hints", hint[0], hint[1].encode())

        try:
            await self._fetch("the use of a snapshot", source, note)
        except StripefsError as error:
            _log.info("%s does not learn that %s is used: %s", source.url, name[:12], error)

    async def cached_index(self, digest: str) -> Index | None:
        """The block index if it is here; no store is asked."""
        what = f"the block index {digest[:12]} cannot be used"
        return await self._tolerant(what, None, self._cache.cached_index, digest)

    async def indexes(self) -> list[str]:
        """The digests of the block indexes that are here, those that came last first."""
        return await self._tolerant("what is kept of other images is not used", [], self._cache.indexes)

    async def evict(self, most: int, in_use: Collection[str]) -> int | None:
        """Remove what was not used for longest until documents take at most `most` bytes; how many they take then.

        in_use: names of files that stay. None where the disk does not say.
        """
        what = f"the documents in {self._cache.folder} cannot be evicted"
        return await self._tolerant(what, None, self._cache.evict, most, in_use)

    async def files(self, image: str) -> dict[str, tuple[int, int]]:
        """Bytes and inodes of each part of an image, as `MetadataCache.files` has them. Raises MountError."""
        try:
            return await self._local(self._cache.files, image)
        except OSError as error:
            raise MountError(
                f"what the image {image[:12]} takes cannot be read in {self._cache.folder}: {error.strerror}",
                hint="see whether the disk of the cache works",
            ) from error

    async def remove(self, name: str) -> bool:
        """Remove the documents of a part of an image; False where the disk does not do it."""
        try:
            await self._local(self._cache.remove, name)
        except (OSError, ServiceDown) as error:
            _log.warning("%s in %s stays: %s", name[:12], self._cache.folder, error)
            return False
        return True

    async def unused_devices(self, age: float, in_use: Collection[str]) -> list[str]:
        """Devices here that nobody used for `age` seconds; none where the disk does not say. in_use: others."""
        what = f"blocks in {self._cache.folder} that nobody uses stay"
        return await self._tolerant(what, [], self._cache.unused_devices, time.time() - age, in_use)

    async def expire(self, age: float, in_use: Collection[str]) -> None:
        """Remove documents, plans and traces that nobody used for `age` seconds. in_use: those that stay."""
        what = f"documents in {self._cache.folder} that nobody uses stay"
        if removed := await self._tolerant(what, 0, self._cache.expire, time.time() - age, in_use):
            _log.info("%d documents that nobody used for %g days are removed", removed, age / 86400)

    async def once(self, key: object, call: Callable[[], Awaitable[_T]]) -> _T:
        """`await call()`, or what becomes of the one under way for an equal `key`."""
        while True:
            with contextlib.suppress(Abandoned):  # by the one who asked first; now it is our turn
                return await self._under_way.shared(key, call)
            await trio.lowlevel.checkpoint()

    async def prepare(self) -> None:
        """Load the clients of stores that are likely to be asked. One that cannot be loaded is met when it is."""
        await self._disk.run("loading the clients of stores", _prepare, self._cache)

    def _calls_to(self, source: PackSource) -> Executor:
        return self._calls.setdefault(source, Executor(self._timeout))

    def _resolving_at(self, source: PackSource) -> Executor:
        return self._resolving.setdefault(source, Executor(min(_RESOLVE_WITHIN, self._timeout), threads=_RESOLVING))

    async def _local(self, function: Callable[[*_Args], _T], *args: *_Args) -> _T:
        """`function(*args)` in a thread. Raises what that raises, and ServiceDown where the cache's disk hangs."""
        return await self._disk.run("the cache's documents", function, *args, timeout=self._timeout)

    async def _tolerant(
        self, what: str, otherwise: _Other, function: Callable[[*_Args], _T], *args: *_Args
    ) -> _T | _Other:
        """As `_local`; where that fails, `what` is logged, and this is the answer."""
        try:
            return await self._local(function, *args)
        except (OSError, StripefsError) as error:
            _log.warning("%s: %s", what, error)
            return otherwise

    async def _fetch(self, what: str, source: PackSource, call: Callable[[], _T]) -> _T:
        try:
            return await self._calls_to(source).call(what, _careful, call)
        except OSError as error:
            raise StoreError(
                f"{what} cannot be kept in {self._cache.folder}: {error.strerror}",
                hint="the cache needs room and a disk that works",
            ) from error


def _prepare(cache: MetadataCache) -> None:
    try:
        stores = [url for url in _careful(cache.stores) if not is_registry(url)]
        schemes = {*_LIGHT, *_careful(lambda: {parse_url(url).scheme for url in stores})}
    except (OSError, StripefsError) as error:
        _log.warning("what stores were asked cannot be told: %s", error)
        schemes = set(_LIGHT)
    for scheme in schemes:
        try:
            _careful(partial(prepare, scheme))
        except (OSError, StripefsError) as error:
            _log.info("what %s:// needs is loaded when it is needed: %s", scheme, error)


def _careful(call: Callable[[], _T]) -> _T:
    """`call()`, whose errors are ours, or the operating system's: a client of a store may raise anything."""
    try:
        return call()
    except (StripefsError, OSError):
        raise
    except BaseException as error:  # a panic of a client written in Rust is no Exception
        if isinstance(error, ImportError):
            from stripefs.extras import missing

            told = missing(error, newer_worker())
            if told is not None:
                raise StoreError(told.message, hint=told.hint) from error
        _log.exception("a store's client failed unexpectedly")
        raise StoreError(f"the store's client failed unexpectedly: {error!r}") from error


_DOCUMENTS = 8
"""The share of the cache that documents may take: an eighth. They are a thousandth of the blocks they describe."""

_LOOK_AT_DOCUMENTS = 60.0
"""Seconds between looks at what documents take."""

_LOOK_FOR_UNUSED = 3600.0
"""Seconds between looks for what nobody used for long."""

_DISCARD_AGAIN = 5.0
"""Seconds until parts that were in use are tried again. A mount goes some seconds after its last use."""


class CacheUpkeep:
    """The upkeep of one worker's cache. age: seconds without use after which things go, 0 for never. in_use: names of
    documents and devices that somebody needs."""

    def __init__(
        self, age: float, blocks: BlockStore, documents: Documents, in_use: Callable[[], Collection[str]]
    ) -> None:
        self._age = age
        self._blocks = blocks
        self._documents = documents
        self._in_use = in_use
        self._unwanted: set[str] = set()
        self._told = trio.Event()

    async def usage(self, request: UsageRequest) -> UsageAnswer:
        """Each part of an image that is in the cache now."""
        return UsageAnswer(await self._documents.files(request.image))

    def discard(self, parts: Iterable[str]) -> None:
        """Remove these parts of images, as `usage` names them, as soon as they are not in use."""
        self._unwanted.update(parts)
        self._told.set()

    def keep(self, parts: Iterable[str]) -> None:
        """Somebody is about to use these parts: they stay, if they are still here."""
        self._unwanted.difference_update(parts)

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervise, "bounding the documents in the cache", self._bound_documents)
            nursery.start_soon(supervise, "removing what is not needed any more", self._remove_unwanted)
            if self._age:
                nursery.start_soon(supervise, "removing what nobody uses", self._remove_unused)

    async def _bound_documents(self) -> None:
        while True:
            taken = await self._documents.evict(self._blocks.cache.limit // _DOCUMENTS, self._in_use())
            if taken is not None:
                self._blocks.cache.reserved = taken
            await trio.sleep(_LOOK_AT_DOCUMENTS)

    async def _remove_unused(self) -> None:
        """Blocks go before the index that describes them."""
        while True:
            for name in await self._documents.unused_devices(self._age, self._in_use()):
                await self._blocks.cache.discard(name)
            await self._documents.expire(self._age, self._in_use())
            await trio.sleep(_LOOK_FOR_UNUSED)

    async def _remove_unwanted(self) -> None:
        """Blocks go before the documents that describe them."""
        while True:
            for part in sorted(self._unwanted):
                if part in self._unwanted and not {part, f"{part}.erofs"} & set(self._in_use()):
                    await self._blocks.cache.discard(part)
                    if not self._blocks.cache.has(part) and await self._documents.remove(part):
                        self._unwanted.discard(part)
            if self._unwanted:
                await trio.sleep(_DISCARD_AGAIN)
            else:
                self._told = trio.Event()
                await self._told.wait()


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
