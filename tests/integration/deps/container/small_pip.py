"""The pip of most images in tests: `python3 -m pip` as far as starts ask for it, ten times as fast as the real one.

It installs wheels from folders and builds directories by their backend, each name in the version that is asked for. It
says what it did, and its report has the form of pip's. It replaces nothing that is there.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import sys
import sysconfig
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

_VALUED = ("-r", "--target", "--report", "--constraint", "--find-links", "--wheel-dir", "--cache-dir")


class _Words(NamedTuple):
    options: dict[str, str]
    folders: list[str]
    wanted: list[str]


def _read(words: list[str]) -> _Words:
    """The words of a command line, with those of its requirements files."""
    found = _Words({}, [], [])
    rest = iter(words)
    for word in rest:
        name, _, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if name == "-r":
            lines = Path(next(rest)).read_text().split("\n")
            inner = _read([part for line in lines for part in line.split()])
            found.folders.extend(inner.folders)
            found.wanted.extend(inner.wanted)
        elif name == "--find-links":
            found.folders.append(value or next(rest))
        elif name in _VALUED:
            found.options[name] = value or next(rest)
        elif word.startswith("-"):
            found.options[word] = "yes"
        else:
            found.wanted.append(word)
    return found


def _build(source: str, out: str) -> str:
    """The wheel that a directory is built to."""
    settings = tomllib.loads(Path(source, "pyproject.toml").read_text())["build-system"]
    before = os.getcwd()
    os.chdir(source)
    sys.path[:0] = [os.path.join(source, path) for path in settings["backend-path"]]
    try:
        return os.path.join(out, importlib.import_module(settings["build-backend"]).build_wheel(out))
    finally:
        os.chdir(before)


def _named(requirement: str, folders: list[str]) -> str:
    """The wheel of this name and version in the folders."""
    name, version = re.fullmatch(r"([\w-]+)(?:[=>]=(.+))?", requirement).groups()  # type: ignore[union-attr]
    pattern = f"{name}-{version if version and '==' in requirement else '*'}-*.whl"
    for folder in folders:
        for path in sorted(Path(folder).glob(pattern)):
            return str(path)
    sys.exit(f"ERROR: No matching distribution found for {requirement}")


def _reported(wanted: str, wheel: str) -> dict[str, Any]:
    """An entry of pip's report for one that is installed."""
    name, version = os.path.basename(wheel).split("-")[:2]
    digest = hashlib.sha256(Path(wheel).read_bytes()).hexdigest()
    info: dict[str, Any] = {"url": f"file://{wheel}", "archive_info": {"hashes": {"sha256": digest}}}
    if os.path.isdir(wanted):
        info = {"url": f"file://{wanted}", "dir_info": {}}
    return {"download_info": info, "is_direct": os.path.isdir(wanted), "metadata": {"name": name, "version": version}}


def _main(verb: str, words: list[str]) -> None:
    asked = _read(words)
    if verb == "wheel":
        for source in asked.wanted:
            _build(source, asked.options["--wheel-dir"])
        return
    assert verb == "install", verb
    with tempfile.TemporaryDirectory() as folder:
        wheels = [_build(one, folder) if os.path.isdir(one) else _named(one, asked.folders) for one in asked.wanted]
        report = json.dumps({"install": [_reported(*pair) for pair in zip(asked.wanted, wheels, strict=True)]})
        if asked.options.get("--report") == "-":
            print(report)
            return
        target = asked.options.get("--target") or sysconfig.get_path("purelib")
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(target)
            print("Successfully installed", os.path.basename(wheel), flush=True)
    if "--report" in asked.options:
        Path(asked.options["--report"]).write_text(report)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2:])
