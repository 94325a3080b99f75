"""The tree plane's worker before it serves: what it refuses, and what the next one must find unchanged."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from imagefs.errors import DocumentUnreadable, FormatError
from imagefs.format.erofs import DeviceSlot, write
from imagefs.format.inodes import Inode
from imagefs.plane.worker import TreeBackend
from stripefs.errors import ConfigError, StaleVersion
from stripefs.fuse.worker import Start
from stripefs.settings import MountSettings


def _image(path: Path, content: bytes) -> str:
    out = io.BytesIO()
    file = Inode(stat.S_IFREG | 0o644, data=content)
    write(Inode(stat.S_IFDIR | 0o755, children={b"file": file}), [DeviceSlot(b"cold", 1)], out)
    path.write_bytes(out.getvalue())
    return str(path)


def _backend(metadata: str, devices: int = 1, kept: Mapping[str, Any] | None = None) -> TreeBackend:
    payload = {"source": "store#tag", "metadata": metadata, "devices": ["/nowhere"] * devices, "io_timeout": 1}
    nobody = cast(Any, None)  # the journal and the counters are not used
    return TreeBackend(Start(json.dumps(payload), MountSettings(), not kept, kept or {}, nobody, nobody))


async def test_the_next_worker_serves_the_same_image_or_none(tmp_path: Path) -> None:
    metadata = _image(tmp_path / "meta", b"one")
    first = _backend(metadata)
    await first.open()
    assert first.source == "store#tag"
    await _backend(metadata, kept=first.kept).open()
    Path(metadata).unlink()
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        await _backend(metadata, kept=first.kept).open()
    _image(tmp_path / "meta", b"two")
    with pytest.raises(StaleVersion, match="meta was replaced"):
        await _backend(metadata, kept=first.kept).open()


@pytest.mark.parametrize("content", [b"", b"x", bytes(8192)])
async def test_what_is_no_image_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "meta").write_bytes(content)
    with pytest.raises(FormatError):
        await _backend(str(tmp_path / "meta")).open()


async def test_devices_must_be_as_many_as_the_image_names(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="an image of 1 devices, not 3"):
        await _backend(_image(tmp_path / "meta", b"one"), devices=3).open()


async def test_metadata_that_cannot_be_read_is_an_error_of_who_reads(tmp_path: Path) -> None:
    """A mapped file would end the worker, and each that comes after it: SIGBUS."""
    metadata = _image(tmp_path / "meta", bytes(20_000))
    backend = _backend(metadata)
    await backend.open()
    os.truncate(metadata, 100)
    with pytest.raises(DocumentUnreadable) as caught:
        backend._image.stat(backend._image.root)
    assert caught.value.errno == errno.EIO
