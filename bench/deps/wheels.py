"""The index that installers take wheels from: fetched once, and served as a Python Package Index serves them.

Plain files are enough for that: a page for each project (PEP 503), and the metadata of each wheel beside it (PEP 658),
so that a resolver need not fetch the wheel for it.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from packaging.utils import canonicalize_name, parse_wheel_filename

from bench.harness import BenchError, Say
from bench.harness.environment import remove_tree
from bench.harness.programs import run

__all__ = ["fetch", "lay_out", "size_of"]


def fetch(pins: Iterable[str], folder: Path, say: Say) -> None:
    """Have a wheel of each pin (`NAME==VERSION`) for this interpreter in `folder`. Raises BenchError."""
    folder.mkdir(parents=True, exist_ok=True)
    there = {_pin_of(wheel) for wheel in folder.glob("*.whl")}
    lacking = [pin for pin in pins if pin not in there]
    how = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
    while lacking:
        # pip takes one version of each at a time.
        together = {pin.partition("==")[0]: pin for pin in lacking}.values()
        say(f"fetching {len(together)} wheels (once)")
        run(sys.executable, "-m", "pip", "download", *how, "--dest", folder, *together)
        lacking = [pin for pin in lacking if pin not in together]


def lay_out(folder: Path, pins: Iterable[str], index: Path) -> None:
    """Make of `index` what a server has to show of the wheels of `pins` in `folder`. Pages are below `simple`.

    Raises BenchError for a wheel without metadata.
    """
    remove_tree(index)
    files = index / "files"
    files.mkdir(parents=True)
    lines: dict[str, list[str]] = defaultdict(list)
    wanted = set(pins)
    for wheel in sorted(folder.glob("*.whl")):
        if (pin := _pin_of(wheel)) not in wanted:
            continue
        shutil.copyfile(wheel, files / wheel.name)
        metadata = _metadata(wheel)
        (files / f"{wheel.name}.metadata").write_bytes(metadata)
        with wheel.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        link = f"../../files/{quote(wheel.name)}#sha256={digest}"
        described = f"sha256={hashlib.sha256(metadata).hexdigest()}"
        lines[pin.partition("==")[0]].append(f'<a href="{link}" data-core-metadata="{described}">{wheel.name}</a><br>')
    for project, links in lines.items():
        page = index / "simple" / project / "index.html"
        page.parent.mkdir(parents=True)
        page.write_text("\n".join(["<!DOCTYPE html><html><body>", *links, "</body></html>", ""]))


def size_of(folder: Path, pins: Iterable[str]) -> int:
    """Bytes of the wheels of `pins` in `folder`."""
    wanted = set(pins)
    return sum(wheel.stat().st_size for wheel in folder.glob("*.whl") if _pin_of(wheel) in wanted)


def _pin_of(wheel: Path) -> str:
    name, version, _, _ = parse_wheel_filename(wheel.name)
    return f"{canonicalize_name(name)}=={version}"


def _metadata(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            folder, _, file = name.rpartition("/")
            if file == "METADATA" and folder.endswith(".dist-info") and "/" not in folder:
                return archive.read(name)
    raise BenchError(f"{wheel} describes no package: remove it")
