"""Stores and devices that are open: for as long as an attachment, the kernel, or a request under way needs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from imagefs.blocks.source import PackSource
from imagefs.blocks.store import BlockDevice, BlockStore
from imagefs.blocks.upstream import Mirrors
from imagefs.daemon.documents import Documents
from imagefs.daemon.state import Attachment, State
from imagefs.repository.images import Images
from stripefs.errors import StaleVersion
from stripefs.settings import StoreSettings, store_settings
from stripefs.supervised import contain

__all__ = ["Opened"]


class Opened:
    """Those of `blocks` that `state` says are in use, by the digest of their index; and the stores they come from."""

    def __init__(self, state: State, blocks: BlockStore, documents: Documents) -> None:
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

    def has_all_of(self, attachment: Attachment) -> bool:
        return all(use.index in self.devices for use in attachment.devices)

    async def resolve(self, store: StoreSettings, name: str, look: Callable[[Images], str] | None = None) -> str:
        """The digest that a name in a store stands for, as `Documents.resolve` has it."""
        with self.wanting(store):
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
        self._blocks.also(self.devices[digest], source)

    async def check_packs(self, digests: Iterable[str], source: PackSource) -> None:
        """Raise DamagedObject where the store lacks packs of one of these open devices, and not all of it is here."""
        for device in [self.devices[digest] for digest in digests]:
            if not device.complete:
                await self._documents.check_packs(device.index.packs, source)

    async def is_complete(self, digest: str, source: PackSource) -> bool:
        """Whether all of the device with this block index is on this host. No store is asked."""
        index = await self._documents.kept_index(digest)
        if index is None:
            return False
        device = await self._blocks.open(digest, index, source)
        device.close()
        return device.complete

    async def open_what_was(self) -> None:
        """Serve the devices that an earlier worker served, where their indexes are here still."""
        for digest, facts in self._state.known.items():
            index = await self._documents.kept_index(digest)
            if index is not None:
                source = self.source(store_settings(facts["store"]))
                self.devices[digest] = await self._blocks.open(digest, index, source)
        for attachment in self._state.attachments.values():
            for device in (self.devices[use.index] for use in attachment.devices if use.index in self.devices):
                self._blocks.also(device, self.source_of(attachment))

    async def offer_what_is_kept(self) -> None:
        """Let blocks of images that nobody uses now serve others that have the same ones."""
        for digest in await self._documents.indexes():
            await contain(f"offering the blocks of device {digest[:12]}", self._offer, digest)

    async def _offer(self, digest: str) -> None:
        index = await self._documents.kept_index(digest)
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

    async def renew(self, digest: str) -> BlockDevice:
        """A device whose block index cannot be read here any more, with one that can. Raises as `open_again` does."""
        device = await self.open_again(digest)
        source = self.source(store_settings(self._state.known[digest]["store"]))
        device.renew(await self._documents.index(digest, source))
        return device

    @contextmanager
    def wanting(self, *what: object) -> Iterator[None]:
        """No store and no device of these is closed meanwhile."""
        self._wanted.update(what)
        try:
            yield
        finally:
            self._wanted.subtract(what)
            self._wanted = +self._wanted
            self.close_unused()

    def close_unused(self) -> None:
        for digest in [one for one in self.devices if not self._state.in_use(one) and not self._wanted[one]]:
            self.devices.pop(digest).close()
        in_use = [one.store for one in self._state.attachments.values()]
        in_use += [facts["store"] for facts in self._state.known.values()]
        stores = {store_settings(one) for one in in_use}
        for store in [one for one in self._sources if one not in stores and not self._wanted[one]]:
            source = self._sources.pop(store)
            self._blocks.drop(source)
            source.close()
