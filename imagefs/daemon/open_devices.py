"""Stores and devices that are open, for as long as somebody needs them.

An attachment, the kernel, or a request under way keeps a device and its store open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import trio

from imagefs.blocks.source import PackSource
from imagefs.blocks.store import BlockDevice, BlockStore
from imagefs.blocks.upstream import Mirrors
from imagefs.daemon.documents import Documents
from imagefs.daemon.requests import NoteAnswer, NoteRequest
from imagefs.daemon.state import Attachment, DaemonState, DeviceUse
from imagefs.format import is_digest
from imagefs.format.documents import Manifest
from imagefs.repository.images import Images
from stripefs.background import contain
from stripefs.errors import ConfigError, ServiceDown, StaleVersion
from stripefs.settings import StoreSettings, redact, store_settings

__all__ = ["OpenDevices"]


class OpenDevices:
    """The devices of `blocks` that `state` says are in use, by the digest of their index; and their stores."""

    def __init__(self, state: DaemonState, blocks: BlockStore, documents: Documents) -> None:
        self.devices: dict[str, BlockDevice] = {}
        self._state = state
        self._blocks = blocks
        self._documents = documents
        self._sources: dict[StoreSettings, PackSource] = {}
        self._wanted: Counter[object] = Counter()  # devices and stores of images that are being attached

    def source(self, store: StoreSettings) -> PackSource:
        """The store, which is connected when it is first read."""
        if store not in self._sources:
            self._sources[store] = PackSource(store, mirrors=Mirrors(store))
        return self._sources[store]

    def source_of(self, attachment: Attachment) -> PackSource:
        return self.source(store_settings(attachment.store))

    def devices_of(self, attachment: Attachment) -> list[BlockDevice]:
        return [self.devices[use.index] for use in attachment.devices]

    async def resolve(self, store: StoreSettings, name: str, look: Callable[[Images], str] | None = None) -> str:
        """The digest that a name in a store stands for, as `Documents.resolve` has it."""
        with self.keep_open(store):
            return (await self._documents.resolve(self.source(store), name, look))[0]

    async def open(self, digest: str, source: PackSource) -> None:
        """Serve the device with this block index. Several may ask at once."""
        if digest not in self.devices:
            index = await self._documents.index(digest, source)
            device = await self._blocks.open(digest, index, source)
            if digest in self.devices:  # another has opened it meanwhile
                device.close()
            else:
                self.devices[digest] = device
        self._blocks.add_source(self.devices[digest], source)

    async def check_packs(self, digests: Iterable[str], source: PackSource) -> None:
        """Raise DamagedObject where the store lacks packs of one of these open devices, and not all of it is here."""
        for device in [self.devices[digest] for digest in digests]:
            if not device.complete:
                await self._documents.check_packs(device.index.packs, source)

    async def _is_complete(self, digest: str, source: PackSource) -> bool:
        """Tells whether all of the device with this block index is on this host. No store is asked."""
        index = await self._documents.cached_index(digest)
        if index is None:
            return False
        device = await self._blocks.open(digest, index, source)
        device.close()
        return device.complete

    async def has_only_base(self, manifest: Manifest, source: PackSource) -> bool:
        """Tells whether the image that this one was made from is on this host, and the copies of the hot device are
        not."""
        if not manifest.base:
            return False
        *others, hot = [await self._is_complete(one.index, source) for one in manifest.devices]
        return all(others) and not hot

    async def note(self, request: NoteRequest) -> NoteAnswer:
        """A note of a start for later ones, "" where the store has none."""
        store, kind, name, timeout = request
        if not is_digest(name):
            raise ConfigError(f"{kind}/{name} names no note")
        with self.keep_open(store), trio.move_on_after(timeout):
            return NoteAnswer((await self._documents.note(self.source(store), kind, name)).decode("utf-8", "replace"))
        raise ServiceDown(f"{redact(store.url)}: no answer within {timeout:g} s")

    def figures(self, use: DeviceUse) -> dict[str, Any]:
        """Facts about a device for `status`: its blocks, where it is open, and the handles that the kernel holds."""
        device = self.devices.get(use.index)
        found = {"tag": use.tag, "size": use.size, "index": use.index, "handles": self._state.holders(use.index)}
        if device is None:
            return found
        return {**found, "blocks": device.index.stored, "present": device.present, "complete": device.complete}

    async def open_devices_of_state(self) -> None:
        """Serve the devices that an earlier worker served, where their indexes are here still."""
        for digest, facts in self._state.known.items():
            index = await self._documents.cached_index(digest)
            if index is not None:
                source = self.source(store_settings(facts["store"]))
                self.devices[digest] = await self._blocks.open(digest, index, source)
        for attachment in self._state.attachments.values():
            for device in (self.devices[use.index] for use in attachment.devices if use.index in self.devices):
                self._blocks.add_source(device, self.source_of(attachment))

    async def share_cached_blocks(self) -> None:
        """Let blocks of images that nobody uses now serve others that have the same ones."""
        for digest in await self._documents.indexes():
            await contain(f"offering the blocks of device {digest[:12]}", self._offer, digest)

    async def _offer(self, digest: str) -> None:
        index = await self._documents.cached_index(digest)
        if index is not None:
            await self._blocks.offer(digest, index)

    async def open_again(self, digest: str) -> BlockDevice:
        """A device in use whose index was not here any more when this worker began. Raises StaleVersion, and what
        reading the index raises."""
        facts = self._state.known.get(digest)
        if facts is not None:
            await self.open(digest, self.source(store_settings(facts["store"])))
        if (device := self.devices.get(digest)) is None:
            raise StaleVersion(f"device {digest[:12]} is not served any more", hint="mount the image again")
        return device

    async def replace_index(self, digest: str) -> BlockDevice:
        """A device whose block index cannot be read here any more, with one that can. Raises as `open_again` does."""
        device = await self.open_again(digest)
        source = self.source(store_settings(self._state.known[digest]["store"]))
        device.replace_index(await self._documents.index(digest, source))
        return device

    @contextmanager
    def keep_open(self, *what: object) -> Iterator[None]:
        """No store and no device of these is closed meanwhile."""
        self._wanted.update(what)
        try:
            yield
        finally:
            self._wanted.subtract(what)
            self._wanted = +self._wanted
            self.close_unused()

    def close_unused(self) -> None:
        for digest in [one for one in self.devices if one not in self._state.known and not self._wanted[one]]:
            self.devices.pop(digest).close()
        in_use = [one.store for one in self._state.attachments.values()]
        in_use += [facts["store"] for facts in self._state.known.values()]
        stores = {store_settings(one) for one in in_use}
        for store in [one for one in self._sources if one not in stores and not self._wanted[one]]:
            source = self._sources.pop(store)
            self._blocks.remove_source(source)
            source.close()
