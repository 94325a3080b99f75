"""The worker of a tree-plane mount: an image's tree over the files of its devices, served by `stripefs.fuse.worker`.

Its payload is JSON: `source` (what the mount table shows), `metadata` (path of the EROFS image), `devices` (paths, one
after the other as the metadata names them), `io_timeout` (seconds), `owner` (user and group of all files, or null).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from imagefs.blocks.document_file import DocumentFile
from imagefs.errors import FormatError
from imagefs.format.erofs import ErofsImage
from imagefs.plane.pread import FileDevices
from imagefs.plane.tree import ImageTree
from stripefs.errors import ConfigError, StaleVersion
from stripefs.fuse import worker
from stripefs.fuse.control_server import Request
from stripefs.fuse.protocol import ServedTree

__all__ = ["TreeBackend"]


class TreeBackend:
    """One image at one mountpoint."""

    requests: Mapping[str, Request] = {}

    def __init__(self, start: worker.Start) -> None:
        payload = json.loads(start.payload)
        self.source: str = payload["source"]
        self._metadata: str = payload["metadata"]
        self._paths: list[str] = payload["devices"]
        self._timeout: float = payload["io_timeout"]
        owner = payload.get("owner")
        self._owner = (int(owner[0]), int(owner[1])) if owner else None
        self._expected = start.kept.get("image")
        self._image: ErofsImage
        self._devices: FileDevices

    @property
    def kept(self) -> Mapping[str, Any]:
        return {"image": self._image.super.uuid.hex()}

    async def open(self) -> None:
        self._image = ErofsImage(_opened(self._metadata))
        if len(self._paths) != len(self._image.devices):
            raise FormatError(
                f"{self._metadata} is an image of {len(self._image.devices)} devices, not {len(self._paths)}"
            )
        # The UUID is made of all the rest, and node ids mean something in this image only.
        if self._expected not in (None, self.kept["image"]):
            raise StaleVersion(f"{self._metadata} was replaced", hint="unmount it and mount the image again")

    async def run(self, *, task_status: trio.TaskStatus[ServedTree]) -> None:
        self._devices = FileDevices(self._paths, self._timeout)
        task_status.started(ImageTree(self._image, self._devices.read, self._owner))

    def status(self) -> dict[str, Any]:
        return {
            "image": self.kept["image"],
            "metadata": self._metadata,
            "devices": self._paths,
            **self._devices.snapshot(),
        }

    def metrics(self, status: Mapping[str, Any]) -> str:
        from stripefs.metrics import render

        return render(status)

    def close(self) -> None:
        self._devices.close()


def _opened(path: str) -> DocumentFile:
    try:
        file = DocumentFile(Path(path))
    except OSError as error:
        raise ConfigError(f"the image's metadata {path} cannot be read: {error.strerror}") from error
    if not len(file):
        raise FormatError(f"the image's metadata {path} is empty")
    return file


if __name__ == "__main__":
    worker.main(TreeBackend)
