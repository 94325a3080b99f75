"""The documents of images on this machine: fetched once, checked each time, found again when the store is away.

    manifests/DIGEST        manifests
    indexes/DIGEST          block indexes, read where they lie
    metadata/DIGEST.erofs   EROFS images, as the kernel mounts them
    names/HASH              which digest a tag of a store stood for when it was last asked

All calls block. A file appears under its name when it is whole; one that cannot be read, or does not hold
what its name says, counts as missing: so what a power cut spoils is fetched again. An EROFS image, which takes
megabytes, is read for that once by each process, and again when its size or its times have changed since. One process
at a time may use the folder. A file's time of change says when it was last used; `evict` removes those that were not
used for longest.

Where the disk has no room, documents go to the `spill` folder, in memory, and stay there while they are in use: an
image whose blocks are read past a full cache still needs its metadata in a file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

from imagefs.errors import DamagedObject, DocumentUnreadable
from imagefs.format import is_digest
from imagefs.format.documents import Manifest, Metadata
from imagefs.format.index import Index
from imagefs.plane.devreader import DocumentFile
from imagefs.repository.images import Images
from stripefs.osutil import atomic_file

__all__ = ["RECENT", "MetadataCache"]

_log = logging.getLogger(__name__)

RECENT = 600.0
"""Seconds for which a document that was used stays: an image that is being attached is not in use yet."""

_KINDS = ("manifests", "indexes", "metadata", "names")


class MetadataCache:
    """The documents below `folder`, which is made where it is missing. Raises OSError for a disk that fails.

    spill: where documents go when the disk is full; None for nowhere.
    """

    def __init__(self, folder: Path, spill: Path | None = None) -> None:
        self.folder = folder
        self._spill = spill
        self._whole: dict[Path, tuple[int, ...]] = {}  # EROFS images that held what they say, as they were then
        for name in _KINDS:
            (folder / name).mkdir(parents=True, exist_ok=True)

    def evict(self, most: int, in_use: Collection[str]) -> int:
        """Remove the least recently used documents until all take at most `most` bytes; how many they take then.

        in_use: names of files that stay. So does what was used within RECENT seconds. Raises OSError.
        """
        found = []
        for kind in _KINDS:
            for entry in os.scandir(self.folder / kind):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime, status.st_blocks * 512, entry))
        used, now = sum(size for _, size, _ in found), time.time()
        for when, size, entry in sorted(found, key=lambda one: one[:2]):
            if used <= most:
                break
            if entry.name not in in_use and not entry.name.startswith(".") and not 0 <= now - when < RECENT:
                os.unlink(entry.path)
                used -= size
        for path in self._spilled():
            if path.name not in in_use and not 0 <= now - _used(path) < RECENT:
                path.unlink(missing_ok=True)
        return used

    def unused_devices(self, before: float, in_use: Collection[str]) -> list[str]:
        """Devices of whose blocks something is here, and that nobody used since `before`, in seconds since 1970.

        A device is used when its index is, and when its table is written: what the kernel reads of a whole one nobody
        sees. in_use: those that stay. Raises OSError.
        """
        found = []
        for table in sorted((self.folder / "blocks").glob("*.table")):
            used = [_used(table), _used(self.folder / "indexes" / table.stem)]
            if table.stem not in in_use and max(used) < before:
                found.append(table.stem)
        return found

    def expire(self, before: float, in_use: Collection[str]) -> int:
        """Remove documents, plans and traces that nobody used since `before`, in seconds since 1970; how many.

        in_use: names of documents that stay, and count as used now. Raises OSError.
        """
        removed = 0
        for kind in _KINDS:
            for path in list((self.folder / kind).iterdir()):
                if path.name in in_use:
                    _touch(path)
                elif 0 < _used(path) < before:
                    path.unlink(missing_ok=True)
                    removed += 1
        for path in (self.folder / "traces").rglob("*"):
            if path.is_file() and _used(path) < before:
                path.unlink(missing_ok=True)
                removed += 1
        return removed

    def files(self, image: str) -> dict[str, tuple[int, int]]:
        """Bytes on disk and inodes of each part of an image that is here, by the name of the part: the digest of the
        manifest, of a block index with the blocks of its device, or of the metadata. Several images may have a part.

        Nothing of an image whose manifest is not here; what is in memory takes no disk. Raises OSError.
        """
        data = _read_verified(self._path_of("manifests", image), image)
        if data is None:
            return {}
        manifest = Manifest.from_json(data)
        names = [image, manifest.metadata.digest, *(device.index for device in manifest.devices)]
        found = {}
        for name in names:
            sizes = [size for path in self._paths(name) if (size := _size(path)) is not None]
            found[name] = sum(sizes), len(sizes)
        return found

    def remove(self, name: str) -> None:
        """Remove the documents of a part of an image, as `files` names it; not the blocks. Raises OSError."""
        for path in self._paths(name):
            if path.parent.name != "blocks":
                path.unlink(missing_ok=True)
        for path in self._spilled():
            if path.stem == name:
                path.unlink(missing_ok=True)

    def _paths(self, name: str) -> list[Path]:
        """All files that a part of an image may have."""
        blocks = [self.folder / "blocks" / f"{name}.{kind}" for kind in ("data", "table", "complete")]
        documents = (self.folder / "manifests" / name, self.folder / "indexes" / name)
        return [*documents, self.folder / "metadata" / f"{name}.erofs", *blocks]

    def default_limit(self) -> int:
        """Bytes that the cache may take unless it is told: on its file system, with what it takes already.

        Documents that an earlier worker kept must not make it less for the next one. Raises OSError.
        """
        space, blocks = os.statvfs(self.folder), self.folder / "blocks"
        kept = sum(entry.stat().st_blocks * 512 for entry in os.scandir(blocks)) if blocks.is_dir() else 0
        return (space.f_bavail * space.f_frsize + kept + self.evict(sys.maxsize, ())) // 2

    def tidy(self) -> None:
        """Remove what a process that was killed had half written."""
        for kind in _KINDS:
            for draft in (self.folder / kind).glob(".*"):
                with contextlib.suppress(OSError):  # a disk that cannot be written to is met elsewhere
                    draft.unlink(missing_ok=True)

    def remembered(self, url: str, name: str) -> str:
        """The digest that `name` stood for in the store at `url` when it was last asked, "" when it never was."""
        try:
            digest = str(json.loads(self._name(url, name).read_text())["digest"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""
        _touch(self._name(url, name))
        return digest if is_digest(digest) else ""

    def remember(self, url: str, name: str, digest: str) -> None:
        with atomic_file(self._name(url, name)) as file:
            file.write(json.dumps({"store": url, "name": name, "digest": digest}).encode())

    def stores(self) -> set[str]:
        """The URLs of stores that were asked, secrets hidden. Raises OSError."""
        found = set()
        for path in (self.folder / "names").iterdir():
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                found.add(str(json.loads(path.read_text())["store"]))
        return found

    def manifest(self, digest: str, images: Callable[[], Images]) -> Manifest:
        """`images` is asked for the store only when the manifest is not here. Raises what reading it raises."""
        path = self._path_of("manifests", digest)
        data = _read_verified(path, digest)
        if data is None:
            data = images().manifest_bytes(digest)
            path = self._keep("manifests", digest, data)
        _touch(path)
        return Manifest.from_json(data)

    def index(self, digest: str, images: Callable[[], Images]) -> Index:
        path = self._path_of("indexes", digest)
        for _ in range(2):
            if (index := _index(path, digest)) is not None:
                _touch(path)
                return index
            path = self._keep("indexes", digest, images().object("indexes", digest))
        raise DamagedObject(f"{path} does not keep what is written to it", hint="see whether its disk is healthy")

    def indexes(self) -> list[str]:
        """The digests of the block indexes that are here, those that came last first."""
        found = [entry for entry in os.scandir(self.folder / "indexes") if len(entry.name) == 64]
        return [entry.name for entry in sorted(found, key=lambda entry: entry.stat().st_mtime_ns, reverse=True)]

    def cached_index(self, digest: str) -> Index | None:
        """The block index if it is here and whole."""
        return _index(self._path_of("indexes", digest), digest)

    def metadata_path(self, entry: Metadata) -> Path:
        """The path at which the EROFS image lies, or will, unless the disk is full then. Asks no disk."""
        return self.folder / "metadata" / f"{entry.digest}.erofs"

    def metadata(self, entry: Metadata, images: Callable[[], Images]) -> Path:
        """The path of the EROFS image."""
        name = self.metadata_path(entry).name
        path = self._path_of("metadata", name)
        found = _state(path)
        if found is None or found != self._whole.get(path):
            self._whole.pop(path, None)
            if not _holds(path, entry.digest):
                path = self._keep("metadata", name, images().metadata(entry))
                found = _state(path)
        unchanged = found is not None and found == _state(path)
        _touch(path)
        if unchanged and (now := _state(path)) is not None:
            self._whole[path] = now
        return path

    def _path_of(self, kind: str, name: str) -> Path:
        """The path of a document; if it is nowhere, the one that it would have on disk."""
        path = self.folder / kind / name
        if self._spill is not None and not path.exists() and (spilled := self._spill / kind / name).exists():
            return spilled
        return path

    def _keep(self, kind: str, name: str, data: bytes) -> Path:
        """Write a document; where it is then."""
        path = self.folder / kind / name
        try:
            with atomic_file(path) as file:
                file.write(data)
        except OSError as error:
            if self._spill is None or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            _log.warning("%s has no room: %s is kept in memory, in %s", self.folder, name[:12], self._spill)
            path = self._spill / kind / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with atomic_file(path) as file:
                file.write(data)
        return path

    def _spilled(self) -> list[Path]:
        """All documents in memory."""
        if self._spill is None or not self._spill.is_dir():
            return []
        return [path for path in self._spill.glob("*/*") if not path.name.startswith(".")]

    def _name(self, url: str, name: str) -> Path:
        return self.folder / "names" / hashlib.sha256(f"{url}#{name}".encode()).hexdigest()


def _read_verified(path: Path, digest: str) -> bytes | None:
    """The content of the file when it has the digest."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest() == digest else None


def _index(path: Path, digest: str) -> Index | None:
    """The block index in that file, None where it is not there, cannot be read, or is not what its digest says."""
    try:
        file = DocumentFile(path)
        data = file[:]
    except (OSError, DocumentUnreadable):
        return None
    return Index(data, file.read) if hashlib.sha256(data).hexdigest() == digest else None


def _touch(path: Path) -> None:
    """Note a use of the file, now."""
    with contextlib.suppress(OSError):  # then it may be evicted sooner
        os.utime(path)


def _used(path: Path) -> float:
    """Time of the last use of the file, in seconds since 1970; 0 where there is none."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _size(path: Path) -> int | None:
    """Bytes on disk; None where there is no such file."""
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return None


def _state(path: Path) -> tuple[int, ...] | None:
    """Other after every change of the file; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _holds(path: Path, digest: str) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest
    except OSError:
        return False
