"""Packages of a test's own, as wheels and as archives of sources, and the command that installs them."""

from __future__ import annotations

import base64
import hashlib
import io
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["UV", "sdist", "uv", "wheel"]

UV = str(Path(sys.executable).with_name("uv"))

_STAMP = (2024, 1, 2, 3, 4, 6)


def wheel(
    folder: Path,
    name: str,
    files: Mapping[str, str | bytes],
    *,
    version: str = "1.0",
    requires: Sequence[str] = (),
    programs: Mapping[str, str] | None = None,
) -> Path:
    """A wheel whose `files` are by path in it, `NAME-VERSION.data` among them; programs: console scripts by name."""
    info = f"{name}-{version}.dist-info"
    head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    content: dict[str, bytes] = {path: data.encode() if isinstance(data, str) else data for path, data in files.items()}
    content[f"{info}/METADATA"] = "\n".join([*head, *(f"Requires-Dist: {one}" for one in requires), ""]).encode()
    content[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    if programs:
        lines = [f"{program} = {function}\n" for program, function in programs.items()]
        content[f"{info}/entry_points.txt"] = "".join(["[console_scripts]\n", *lines]).encode()
    rows = [f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in content.items()]
    content[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, data in content.items():
            archive.writestr(zipfile.ZipInfo(path, _STAMP), data)
    return target


def sdist(folder: Path, name: str, files: Mapping[str, str]) -> Path:
    """An archive of sources in version 1.0, of these files by path in it."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}-1.0.tar.gz"
    files = {**files, "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"}
    with tarfile.open(target, "w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{name}-1.0/{path}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return target


def uv(*arguments: str | Path) -> list[str]:
    """The command line of `uv pip install` that asks no index."""
    return [UV, "--quiet", "pip", "install", "--offline", "--no-index", *map(str, arguments)]


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
