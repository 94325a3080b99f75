"""The cache directory: its layout and names, its inventory, and verification. Blocking; raises OSError where not noted.

    ROOT/stripefs-1/usage                     bytes in use, and the lock on it (`stripefs.cache.quota`)
    ROOT/stripefs-1/eviction                  the lock of who counts and evicts
    ROOT/stripefs-1/versions/KK/KEY/NNNNNN    segment NNNNNN of the version KEY, in hexadecimal digits
    ROOT/stripefs-1/versions/KK/KEY/about     JSON description of the version: for people, and for retention
    ROOT/stripefs-1/versions/KK/KEY/pin       marks the version as pinned: it is never evicted
    ROOT/stripefs-1/writing/KEY               KEY is one that nobody has published; its writer locks this (flock)

The file system is the index: nothing else says what is here, so nothing else can be wrong about it.

Other processes may use the directory while its versions are listed or verified. Entries that vanish are left out; a
directory that cannot be read raises OSError.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from stripefs import osutil
from stripefs.cache.cache_format import TABLE, described, segment_blocks
from stripefs.cache.policy import Retention, SegmentUse
from stripefs.cache.segment import CacheSegment, Damaged
from stripefs.errors import ConfigError
from stripefs.osutil import atomic_file

__all__ = ["CacheDir", "CachedVersion", "VerifyResult", "cached_versions", "verify_version"]

FOLDER = "stripefs-1"
"""The format's version is in the name, so that tools of two versions share a folder without meeting."""

_KEY = re.compile(r"[0-9a-f]{32}")
_SEGMENT = re.compile(r"[0-9a-f]{6,16}")
_DRAFT = ".about-"
_LONGEST = 64 << 10
"""Bytes of an `about` that is believed."""


class CacheDir:
    """`directory` is what the user named. Nothing is made before it is needed."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.root = os.path.join(directory, FOLDER)

    def check(self) -> None:
        """Raises ConfigError where the folder is somebody else's, who could put files of their own into it."""
        try:
            found = os.lstat(self.root)
        except OSError:
            return
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise ConfigError(
                f"--cache: {self.root} belongs to somebody else, or others may write there",
                hint="name a directory of your own",
            )

    # -- names ---------------------------------------------------------------------------------------------------

    def folder(self, key: bytes) -> str:
        name = key.hex()
        return os.path.join(self.root, "versions", name[:2], name)

    def segment(self, key: bytes, number: int) -> str:
        return os.path.join(self.folder(key), f"{number:06x}")

    @property
    def usage(self) -> str:
        return os.path.join(self.root, "usage")

    @property
    def eviction(self) -> str:
        return os.path.join(self.root, "eviction")

    def open_lock(self, path: str) -> int:
        """A descriptor of `usage` or `eviction`, which is made where it is missing. The caller closes it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            os.makedirs(self.root, 0o700, exist_ok=True)
            return os.open(path, flags, 0o600)

    # -- versions that are being written -------------------------------------------------------------------------

    def begin(self, key: bytes) -> int:
        """Say that the version `key` is being written by who has this descriptor, until `end`, or until the process
        ends. For one at a time of all who use the folder."""
        path = self._mark(key)
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        mark = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        osutil.ours(mark)
        fcntl.flock(mark, fcntl.LOCK_EX)
        return mark

    def end(self, key: bytes, mark: int) -> None:
        """Note that the version is published, or removed. Raises nothing."""
        self.forget(key)
        osutil.not_ours(mark)
        os.close(mark)

    def forget(self, key: bytes) -> None:
        """Nothing is here any more of a version that was being written. Raises nothing."""
        with contextlib.suppress(OSError):
            os.unlink(self._mark(key))

    def abandoned(self) -> Iterator[bytes]:
        """The keys of versions whose writers have gone; `forget` follows. For one caller at a time, and while nobody
        calls `begin`."""
        for name in _names(os.path.join(self.root, "writing")):
            if _KEY.fullmatch(name) and self._is_dead(self._mark(bytes.fromhex(name))):
                yield bytes.fromhex(name)

    def is_written(self, key: bytes) -> bool:
        """True if it is not published, for all that is known."""
        return os.path.lexists(self._mark(key))

    def _mark(self, key: bytes) -> str:
        return os.path.join(self.root, "writing", key.hex())

    def _is_dead(self, path: str) -> bool:
        try:
            mark = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(mark)
        return True

    # -- what is here --------------------------------------------------------------------------------------------

    def versions(self) -> Iterator[bytes]:
        """The keys of those of which there is a folder."""
        top = os.path.join(self.root, "versions")
        for first in _names(top):
            for name in _names(os.path.join(top, first)):
                if _KEY.fullmatch(name):
                    yield bytes.fromhex(name)

    def segment_uses(self, keys: Iterable[bytes] | None = None) -> Iterator[SegmentUse]:
        """The segments of these versions, of all unless given. Segments removed meanwhile are left out."""
        for key in self.versions() if keys is None else keys:
            with contextlib.suppress(FileNotFoundError), os.scandir(self.folder(key)) as entries:
                for entry in entries:
                    if _SEGMENT.fullmatch(entry.name):
                        with contextlib.suppress(FileNotFoundError):
                            found = entry.stat(follow_symlinks=False)
                            used = max(found.st_atime, found.st_mtime)
                            yield SegmentUse(key, int(entry.name, 16), found.st_blocks * 512, used)

    def about(self, key: bytes) -> dict[str, Any]:
        """The description of a version; empty where that is missing or damaged. Raises nothing."""
        try:
            with open(os.path.join(self.folder(key), "about"), "rb") as file:
                found = json.loads(file.read(_LONGEST))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def describe(self, key: bytes, about: dict[str, Any]) -> None:
        """Write that, whole or not at all."""
        folder = self.folder(key)
        os.makedirs(folder, 0o700, exist_ok=True)
        with atomic_file(os.path.join(folder, "about"), _DRAFT) as file:
            file.write(json.dumps(about).encode())

    def pinned(self, key: bytes) -> bool:
        return os.path.lexists(os.path.join(self.folder(key), "pin"))

    def kept(self, keys: Iterable[bytes]) -> dict[bytes, Retention]:
        """The reason for which each of these versions may stay. Raises nothing."""
        return {key: _kept(self.pinned(key), self.about(key)) for key in keys}

    # -- changes -------------------------------------------------------------------------------------------------

    def pin(self, key: bytes) -> None:
        os.makedirs(self.folder(key), 0o700, exist_ok=True)
        os.close(os.open(os.path.join(self.folder(key), "pin"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def unpin(self, key: bytes) -> bool:
        """True if it was pinned."""
        try:
            os.unlink(os.path.join(self.folder(key), "pin"))
        except FileNotFoundError:
            return False
        return True

    def remove(self, piece: SegmentUse) -> int:
        """Remove a segment, and the version's folder with the last; the bytes that this gives back."""
        size = 0
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.segment(piece.key, piece.number))
            size = piece.size
        self.tidy(piece.key)
        return size

    def tidy(self, key: bytes) -> None:
        """Remove the folder of a version of which nothing is here and which is not pinned. Raises nothing."""
        folder = self.folder(key)
        names: list[str] = []
        with contextlib.suppress(OSError):
            with os.scandir(folder) as entries:  # up to the first that stays: there may be thousands
                for entry in entries:
                    if entry.name != "about" and not entry.name.startswith(_DRAFT):
                        return
                    names.append(entry.name)
            for name in names:
                os.unlink(os.path.join(folder, name))
            os.rmdir(folder)
            os.rmdir(os.path.dirname(folder))


def _kept(pinned: bool, about: dict[str, Any]) -> Retention:
    def of(name: str, kind: type) -> Any:
        value = about.get(name)
        return value if isinstance(value, kind) else kind()

    return Retention(pinned, of("source", str), of("checkpoint", str), of("keep", int), of("mtime_ns", int))


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


@dataclass(frozen=True, slots=True)
class CachedVersion:
    """A version of which something is here. about: as in `CacheDir.about`. size: bytes on disk; used: seconds since
    1970.

    numbers: its segments. writing: it is being written, and is no version of a file yet.
    """

    key: bytes
    about: dict[str, Any]
    pinned: bool
    writing: bool
    size: int
    used: float
    numbers: tuple[int, ...]

    @property
    def name(self) -> str:
        """The path at which the file was last seen, "" where that is not known."""
        path = self.about.get("path")
        return path if isinstance(path, str) else ""

    @property
    def length(self) -> int:
        """Of the file in bytes, 0 where that is not known."""
        length = self.about.get("length")
        return length if isinstance(length, int) else 0


@dataclass(slots=True)
class VerifyResult:
    """blocks and size (bytes): of all that was read. damaged: blocks that failed their check, removed now.

    unreadable: segments that the disk did not give, or that are none, with the reason.
    """

    blocks: int = 0
    size: int = 0
    damaged: int = 0
    unreadable: list[tuple[str, str]] = field(default_factory=list)


def cached_versions(cachedir: CacheDir) -> Iterator[CachedVersion]:
    """All versions of which there is a folder, in the order of their keys."""
    for key in cachedir.versions():
        pieces = sorted(cachedir.segment_uses([key]), key=lambda piece: piece.number)
        yield CachedVersion(
            key,
            cachedir.about(key),
            cachedir.pinned(key),
            cachedir.is_written(key),
            sum(piece.size for piece in pieces),
            max((piece.used for piece in pieces), default=0.0),
            tuple(piece.number for piece in pieces),
        )


def verify_version(cachedir: CacheDir, version: CachedVersion) -> VerifyResult:
    """Read all that is here of a version and compare it."""
    found = VerifyResult()
    for number in version.numbers:
        path = cachedir.segment(version.key, number)
        try:
            _verify_segment(path, version.key, number, found)
        except FileNotFoundError:
            continue  # evicted since
        except (OSError, Damaged) as error:
            found.unreadable.append((path, getattr(error, "strerror", None) or str(error)))
    return found


def _verify_segment(path: str, key: bytes, number: int, found: VerifyResult) -> None:
    with open(path, "rb") as file:
        told = described(file.read(TABLE))
    if told is None:
        raise Damaged("it has no header")
    length = told[2]
    with contextlib.closing(CacheSegment(path, key, number, length)) as segment:
        for block, slot, data in segment.contents(segment_blocks(number), length):
            found.blocks += 1
            found.size += len(data)
            found.damaged += not segment.fits(block, slot, data) and segment.clear(block, slot)
