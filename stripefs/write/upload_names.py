"""The hidden names of one file that is being written. Pure. Each try of an object has a number of its own."""

from __future__ import annotations

from stripefs.errors import InvalidName, NameTooLong, NotPermitted
from stripefs.format.reserved_names import (
    NAME_MAX,
    is_hidden,
    new_version,
    part_name,
    pool_part,
    record_name,
    version_folder,
)
from stripefs.store.base import Store

__all__ = ["UploadNames", "ensure_usable", "join_path", "split_path"]


def split_path(path: bytes) -> tuple[bytes, bytes]:
    """The directory and the last component of an absolute path."""
    folder, _, name = path.rpartition(b"/")
    return folder or b"/", name


def join_path(folder: bytes, name: bytes) -> bytes:
    return (b"" if folder == b"/" else folder) + b"/" + name


def ensure_usable(path: bytes, store: Store) -> None:
    """Raises NotPermitted, NameTooLong, InvalidName for a name, or a path, that nothing of a user may have there."""
    for name in path.split(b"/"):
        if is_hidden(name):
            raise NotPermitted(f"{name!r}: names of that form are kept for stripefs itself")
        if len(name) > NAME_MAX:
            raise NameTooLong(f"{name[:20]!r}… is longer than {NAME_MAX} bytes")
        if why := store.refused_name(name):
            raise InvalidName(f"{name!r} cannot be a name here: {why}")


class UploadNames:
    """`path` is where the file will be published; it may change."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.version = new_version()
        self.versions = [self.version]
        self._next = 0

    def begin_version(self, version: str) -> None:
        """Another version begins."""
        self.version = version
        self.versions.append(self.version)
        self._next = 0

    def beside(self) -> tuple[bytes, int]:
        """The next object beside the file: its path and number."""
        number = self._number()
        folder, name = split_path(self.path)
        return join_path(folder, part_name(name, self.version, number)), number

    def pooled(self) -> tuple[bytes, int]:
        """The next part in the pool."""
        number = self._number()
        return pool_part(self.version, number), number

    def record(self, number: int) -> bytes:
        folder, name = split_path(self.path)
        return join_path(folder, record_name(name, self.version, number))

    @property
    def folder(self) -> bytes:
        """The folder of `pooled`."""
        return version_folder(self.version)

    def _number(self) -> int:
        self._next += 1
        return self._next - 1
