"""Dependency snapshots in a store, beside its images, and what is noted of them (docs/format.md, Store).

A document is written after its image, and of several that are made for one key the first stays. A document that is
damaged, or whose image is damaged or lacks a part, is replaced by the next. One thing of a good one changes later, once
for all: it names an optimised image in place of the one that this was made from (`imagefs.build.optimize_snapshot`).
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Literal, get_args

from imagefs.errors import DamagedObject, FormatError, NoSuchImage, NoSuchSnapshot, UnknownVersion
from imagefs.format import is_digest
from imagefs.format.documents import Manifest, Snapshot
from imagefs.format.inodes import printable
from imagefs.repository.images import Images
from stripefs.errors import Exists, NotFound
from stripefs.store.base import Status

__all__ = ["FOLDER", "NOTES", "Note", "Snapshots", "check_source"]

FOLDER = b"/deps"
_USED = b"/used"

Note = Literal["unkept", "locks", "hints"]
"""Kinds of documents that starts leave for later ones, and replace."""

NOTES: tuple[Note, ...] = get_args(Note)

_MOST = 16 << 20
"""Bytes of a note: more is none of ours, and need not be read to know that."""

_AT_ONCE = 16

_LONGEST = 1000
"""Bytes of a line about what is not published: more is not read by people."""

_DAY = 24 * 3600.0
"""Seconds for which a mark of use holds, so that a thousand starts write one."""


class Snapshots:
    """The dependency snapshots in the store of `images`. Calls raise StoreErrors."""

    def __init__(self, images: Images) -> None:
        self.images = images

    def load(self, name: str) -> Snapshot:
        """Raises NoSuchSnapshot, DamagedObject and FormatError."""
        try:
            return Snapshot.from_json(self.images.read(_path(name)), name)
        except NotFound as error:
            raise self._unknown(name) from error

    def checked_image(self, name: str) -> str:
        """The image of a snapshot, which says itself that it was made for it. Raises what `load` does, NoSuchImage."""
        image = self.load(name).image
        check_source(name, self.images.manifest(image))
        return image

    def has(self, name: str) -> bool:
        """Tells whether there is one, unread."""
        try:
            self.images.stat(_path(name))
        except NotFound:
            return False
        return True

    def why_broken(self, name: str) -> str:
        """The reason for which nobody can use the snapshot of this name: its document, its image or a part of that is
        damaged or gone. "" where everything is there, or the document is of another version. Blocks are not read.

        Raises NoSuchSnapshot, and StoreErrors of a store that is away.
        """
        try:
            manifest = self.images.manifest(self.checked_image(name))
            for device in manifest.devices:
                self.images.check_packs(self.images.index(device.index).packs)
            self.images.metadata(manifest.metadata)
        except UnknownVersion:
            return ""
        except (DamagedObject, FormatError, NoSuchImage, NotFound) as error:
            return str(error)
        return ""

    def damaged_packs(self, name: str) -> frozenset[bytes]:
        """Digests of packs of this snapshot that hold other bytes than their names say; none where the snapshot cannot
        be used anyway. All of its packs are read."""
        if not self.is_usable(name):
            return frozenset()
        devices = self.images.manifest(self.checked_image(name)).devices
        packs = {pack.digest: pack for device in devices for pack in self.images.index(device.index).packs}
        return frozenset(digest for digest, pack in packs.items() if self.images.is_damaged(pack))

    def is_usable(self, name: str) -> bool:
        """Tells whether there is one that hosts can use, as far as `why_broken` sees. Raises StoreErrors."""
        try:
            return self.has(name) and not self.why_broken(name)
        except NoSuchSnapshot:
            return False

    def put(self, snapshot: Snapshot) -> bool:
        """Store the document; False where there is one for this key already that is not broken. Its image must be
        stored.

        Raises DamagedObject where the image was removed meanwhile; then nothing is stored.
        """
        path, data = _path(snapshot.name), snapshot.to_json()
        if self.is_usable(snapshot.name):
            return False
        old = self._own_image(snapshot.name)
        try:
            self.images.create(path, data, replace=self.has(snapshot.name))
        except Exists:
            return False
        if old not in ("", snapshot.image):
            with contextlib.suppress(NoSuchImage):
                self.images.remove(old)
        if not self.images.has(snapshot.image):  # `deps gc` looks for documents after it took one away
            self.remove(snapshot.name)
            raise DamagedObject(f"the image {snapshot.image[:12]} was removed while its snapshot was published")
        self.forget_note("unkept", snapshot.name)
        return True

    def _own_image(self, name: str) -> str:
        """The image that the document names, unless that was made for something else; "" for none."""
        try:
            image = self.load(name).image
            with contextlib.suppress(DamagedObject, FormatError):
                if self.images.manifest(image).source != name:
                    return ""
        except (NoSuchSnapshot, NoSuchImage, DamagedObject, FormatError):
            return ""
        return image

    def add_hot_device(self, name: str, base: str, image: str) -> bool:
        """Let the document that names `base` name `image`, which was made from that and is stored; whether it does now.

        False where it is gone, or names another by now.
        """
        try:
            found = self.load(name)
        except NoSuchSnapshot:
            return False
        if found.image != base:
            return found.image == image
        self.images.create(_path(name), replace(found, image=image).to_json(), replace=True)
        if not self.images.has(base):  # it was taken away with its image, and is back for that long only
            self.remove(name)
            return False
        return True

    def names(self, name: str, image: str) -> bool:
        """Tells whether the document names this image, or one that was made from it."""
        named = self.load(name).image
        return image == named or image == self.images.manifest(named).base

    def retract(self, name: str, image: str) -> None:
        """Remove an image that was made for the snapshot, unless the document that is there by now needs it."""
        with contextlib.suppress(NoSuchImage):
            try:
                needed = self.names(name, image)
            except (NoSuchSnapshot, NoSuchImage, DamagedObject, FormatError):
                needed = False
            if not needed:
                self.images.remove(image)

    def remove(self, name: str) -> None:
        """Take the document away; its image stays. Raises NoSuchSnapshot."""
        try:
            self.images.discard(_path(name))
        except NotFound as error:
            raise self._unknown(name) from error
        self._forget(_USED, name)

    def stored(self) -> dict[str, Status]:
        """All documents by name. Raises Unsupported where nothing can be listed."""
        found = self._below(FOLDER)
        return {name: found[name] for name in sorted(found)}

    def images_named(self) -> dict[str, str]:
        """The image of each by name. Raises DamagedObject and FormatError for a document that cannot be read."""

        def look(name: str) -> tuple[str, str]:
            try:
                return name, self.load(name).image
            except NoSuchSnapshot:
                return name, ""  # removed since it was listed

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return {name: image for name, image in pool.map(look, self.stored()) if image}

    def used(self) -> dict[str, float]:
        """Time of the last use of each, in seconds since 1970, as far as that is known. Raises Unsupported."""
        return {name: status.mtime_ns / 1e9 for name, status in self._below(_USED).items()}

    def mark_used(self, name: str) -> None:
        """Say that it is used now, unless that was said within a day."""
        try:
            age = time.time() - self.images.stat(_path(name, _USED)).mtime_ns / 1e9
            if 0 <= age < _DAY:  # a mark of the future is that of a store whose clock is ahead of ours: it is renewed
                return
        except NotFound:
            pass
        self.images.create(_path(name, _USED), b"", replace=True)

    def note_unpublished(self, name: str, why: str) -> None:
        """Say why it was installed and is not published, to those who wait for it and to later starts."""
        self.put_note("unkept", name, " ".join(why.split())[:_LONGEST].encode())

    def unpublished_reason(self, name: str) -> str:
        """The reason for which the last host that installed it has not published it; "" where none was given."""
        try:
            said = self.images.read(_path(name, _folder("unkept")))[:_LONGEST].decode("utf-8", "replace")
        except NotFound:
            return ""
        return printable(said) or "it does not say why"

    def note(self, kind: Note, name: str) -> bytes:
        """A note of this kind; nothing where there is none. Raises DamagedObject for one that is too large."""
        try:
            return self.images.read(_path(name, _folder(kind)), _MOST)
        except NotFound:
            return b""

    def put_note(self, kind: Note, name: str, document: bytes) -> None:
        """Store a note in place of the one before."""
        self.images.create(_path(name, _folder(kind)), document, replace=True)

    def notes_since(self, kind: Note) -> dict[str, float]:
        """Time at which each note of this kind was stored, in seconds since 1970. Raises Unsupported."""
        return {name: status.mtime_ns / 1e9 for name, status in self._below(_folder(kind)).items()}

    def forget_note(self, kind: Note, name: str) -> None:
        """The note is too old for anybody to need it."""
        self._forget(_folder(kind), name)

    def resolve(self, beginning: str) -> str:
        """The name that begins so. Raises NoSuchSnapshot, also where several do."""
        if is_digest(beginning):
            return beginning
        found = [name for name in self.stored() if name.startswith(beginning)] if beginning else []
        if len(found) != 1:
            raise self._unknown(beginning, f"{len(found)} begin so" if found else "")
        return found[0]

    def _forget(self, folder: bytes, name: str) -> None:
        with contextlib.suppress(NotFound):
            self.images.discard(_path(name, folder))

    def _below(self, folder: bytes) -> dict[str, Status]:
        found = {path.rpartition(b"/")[2].decode("utf-8", "replace"): one for path, one in self.images.files(folder)}
        return {name: status for name, status in found.items() if is_digest(name)}

    def _unknown(self, name: str, why: str = "") -> NoSuchSnapshot:
        more = f": {why}" if why else ""
        return NoSuchSnapshot(
            f"{self.images.url} has no dependency snapshot {name[:12]!r}{more}", hint="see `imagefs deps ls`"
        )


def check_source(name: str, manifest: Manifest) -> None:
    """Raise DamagedObject unless the image with that manifest was made for this snapshot."""
    if manifest.source != name:
        raise DamagedObject(f"the snapshot {name[:12]} names an image that was not made for it")


def _folder(kind: Note) -> bytes:
    return b"/" + kind.encode()


def _path(name: str, folder: bytes = FOLDER) -> bytes:
    return folder + b"/" + name.encode()
