"""A path of a store or of this host, as it was named or found."""

from __future__ import annotations

import os
from dataclasses import dataclass

from stripefs.api.filesystem import Entry, FileSystem
from stripefs.api.urls import in_service
from stripefs.settings import redact
from stripefs.units import shown
from stripefs.write.upload_names import join_path

__all__ = ["Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """`path` in `files`. local: a plain path of this host, where files are written as any program writes them."""

    files: FileSystem
    path: bytes
    local: bool = False

    def __str__(self) -> str:
        """For messages: a path, or a URL without parameters and secrets."""
        url = self.files.url_of(self.path)
        return shown(os.fsencode(url)) if url.startswith("/") else redact(url).partition("?")[0]

    @property
    def key(self) -> tuple[str, bytes]:
        """The service and the path in it: two places of one key are one place."""
        return in_service(self.files.url_of(self.path), of_file=True)

    def below(self, name: bytes) -> Place:
        """The place `name` (with slashes, a path) below this one; itself for b""."""
        return Place(self.files, join_path(self.path, name), self.local) if name else self

    def stat(self) -> Entry | None:
        """The entry at the path, links not followed; None for nothing. Raises OSError."""
        try:
            return self.files.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
