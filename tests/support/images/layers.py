"""Layers and image layouts, made by hand."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zstandard

__all__ = ["directory", "file", "hardlink", "layer", "layout", "symlink"]


def file(name: str, data: bytes = b"", **facts: Any) -> tuple[tarfile.TarInfo, bytes]:
    member = _member(name, tarfile.REGTYPE, **{"mode": 0o644, **facts})
    member.size = len(data)
    return member, data


def directory(name: str, **facts: Any) -> tuple[tarfile.TarInfo, bytes]:
    return _member(name, tarfile.DIRTYPE, **{"mode": 0o755, **facts}), b""


def symlink(name: str, target: str, **facts: Any) -> tuple[tarfile.TarInfo, bytes]:
    return _member(name, tarfile.SYMTYPE, **{"linkname": target, "mode": 0o777, **facts}), b""


def hardlink(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return _member(name, tarfile.LNKTYPE, linkname=target), b""


def _member(name: str, kind: bytes, **facts: Any) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = kind
    for key, value in facts.items():
        setattr(member, key, value)
    return member


def layer(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    """An uncompressed archive of these members, in this order."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:", format=form, encoding="utf-8", errors="surrogateescape") as archive:
        for member, data in members:
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def layout(
    folder: Path,
    layers: Sequence[bytes],
    compress: Sequence[str] = (),
    reference: str = "app",
    config: Mapping[str, Any] | None = None,
) -> Path:
    """An image layout of these archives; `compress` says how each is: "", gzip or zstd. config: Cmd, Env …"""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes, media_type: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    described, contents = [], []
    for number, data in enumerate(layers):
        how = compress[number] if number < len(compress) else "gzip"
        packed = {"": data, "gzip": gzip.compress(data, 6, mtime=0), "zstd": zstandard.compress(data)}[how]
        described.append(put(packed, "application/vnd.oci.image.layer.v1.tar" + (f"+{how}" if how else "")))
        contents.append("sha256:" + hashlib.sha256(data).hexdigest())
    document = {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": contents}}
    if config:
        document["config"] = dict(config)
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": put(json.dumps(document).encode(), "application/vnd.oci.image.config.v1+json"),
        "layers": described,
    }
    found = put(json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")
    found["annotations"] = {"org.opencontainers.image.ref.name": reference}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [found]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder
