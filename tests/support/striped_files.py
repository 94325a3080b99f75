"""Striped files written into a store as the engine leaves them, without the engine."""

from __future__ import annotations

from collections.abc import Sequence

from stripefs.format.manifest import MANIFEST_BLOCK_SIZE, Manifest
from stripefs.store.base import Store
from stripefs.store.striped import StripedStore, pool_of
from tests.support.striping import stripe

__all__ = ["write_marked", "write_striped"]


def write_striped(
    store: Store,
    path: bytes,
    data: bytes,
    widths: Sequence[tuple[int, int]] | None = None,
    *,
    unit: int = 4096,
    version: str = "0123456789abcdef",
) -> Manifest:
    """Put a striped file at `path`, replacing what is there: parts, then the list, then the manifest."""
    if isinstance(store, StripedStore):
        store = store.inner
    shape = [(len(data), min(4, -(-len(data) // unit)))] if widths is None else widths
    manifest, objects = stripe(data, shape, unit, version, pool_of(store.url))
    listed = manifest.parts_list()
    for name, part in [*objects.items(), *([listed] if listed else [])]:
        store.put(name, [part], replace=True)
    write_marked(store, path, manifest.to_bytes())
    return manifest


def write_marked(store: Store, path: bytes, data: bytes) -> None:
    """Replace what is at `path` by a file of these bytes that bears the mark of a manifest."""
    if isinstance(store, StripedStore):
        store = store.inner
    beside = path + b".new"
    store.put(beside, [b""], replace=True)  # makes the directories above
    store.remove(beside)
    store.create(beside, block_size=MANIFEST_BLOCK_SIZE, length=len(data)).complete([data])
    store.rename(beside, path, replace=True)
