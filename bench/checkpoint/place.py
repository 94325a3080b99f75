"""Where a checkpoint is, as the programs that load it are told: a path, or a path in a source and how to reach that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import fsspec

import stripefs

__all__ = ["Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """`path` is one of the machine, or with a `root` one in the source at this URL, which is reached with `options`."""

    path: str
    root: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """For fsspec, which is given `storage_options` with it."""
        return f"stripefs://{self.path}"

    @property
    def storage_options(self) -> dict[str, Any]:
        return {"root": self.root, **self.options}

    def source(self) -> stripefs.FileSystem:
        return stripefs.connect(self.root, **self.options)

    def filesystem(self) -> Any:
        return fsspec.filesystem("stripefs", **self.storage_options)

    def connect(self) -> None:
        """Reach the source, if there is one, as a mount has by the time it is used."""
        if self.root:
            self.source().stat("/")
