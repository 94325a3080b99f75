"""Mounts that are written to, and what their source must look like afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from stripefs.format.reserved_names import POOL_NAME, is_hidden
from stripefs.settings import Settings, WriteSettings
from stripefs.store.local import LocalStore
from stripefs.store.striped import StripedStore
from tests.tools.mounts import Mounts

__all__ = ["content", "hidden", "unreferenced", "writable"]


def writable(mounts: Mounts, url: str = "", *, staging: Path | None = None, **options: Any) -> Settings:
    """Settings of a mount that may be written to; `options` are those of WriteSettings and, else, of `prepare`."""
    names = set(WriteSettings._fields)
    write = {name: options.pop(name) for name in list(options) if name in names}
    if staging is not None:
        staging.mkdir(exist_ok=True)
        write["staging"] = str(staging)
    write = {"grace": 0.0, **write}
    write["memory"] = options.pop("write_memory", write.get("memory", WriteSettings().memory))
    return mounts.prepare(url, rw=True, **options)._replace(write=WriteSettings(**write))


def content(source: Path, name: str | bytes) -> bytes:
    """The bytes of a file as the store has them, whatever its layout, without any mount between."""
    with closing(StripedStore(LocalStore(os.fsencode(source)))) as store:
        return bytes(store.get(b"/" + os.fsencode(name)))


def hidden(source: Path) -> list[str]:
    """Hidden files of writers: locks, parts, uploads, records. None of them outlives its writer."""
    return sorted(_hidden(source))


def _hidden(source: Path) -> Iterator[str]:
    for folder, folders, files in _walk(source):
        yield from (os.fsdecode(os.path.join(folder, name)) for name in files + folders if is_hidden(name))


def unreferenced(source: Path) -> set[str]:
    """Versions in the pool that no file refers to."""
    pool = os.path.join(os.fsencode(source), POOL_NAME)
    versions = {os.fsdecode(name) for name in os.listdir(pool)} if os.path.isdir(pool) else set()
    with closing(StripedStore(LocalStore(os.fsencode(source)))) as store:
        for folder, _, files in _walk(source):
            for name in files:
                path = b"/" + os.path.relpath(os.path.join(folder, name), os.fsencode(source))
                manifest = None if is_hidden(name) or os.path.islink(folder + b"/" + name) else store.manifest(path)
                if manifest is not None:
                    versions -= set(manifest.versions)
    return versions


def _walk(source: Path) -> Iterator[tuple[bytes, list[bytes], list[bytes]]]:
    """Like os.walk, without the pool."""
    for folder, folders, files in os.walk(os.fsencode(source)):
        if folder == os.fsencode(source) and POOL_NAME in folders:
            folders.remove(POOL_NAME)
        yield folder, folders, files
