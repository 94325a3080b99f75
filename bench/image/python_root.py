"""The tree of a small image in which this machine's Python runs, for tests and for the demonstration.

Interpreter and standard library are copied below a prefix, without tests and without packages, and the shared libraries
that they need, and that wheels may expect, to where the dynamic linker looks for them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable
from importlib.metadata import distribution
from pathlib import Path

__all__ = ["VERSION", "add_packages", "add_python"]

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"

_NEEDLESS = ("test", "tests", "config-*", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages")
_OTHERS = ("dist-packages", "*.opt-*.pyc", "EXTERNALLY-MANAGED", "LICENSE.txt")

_OF_WHEELS = (
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "libresolv.so.2",
    "librt.so.1",
    "libstdc++.so.6",
    "libutil.so.1",
)
"""The libraries of a system that wheels may take for granted (PEP 600), as far as they are in use."""

Copy = Callable[[str, str], object]


def add_python(root: Path, prefix: str, copy: Copy = shutil.copy2) -> Path:
    """Copy the interpreter and its library to `prefix` in the tree at `root`; the empty folder of its packages.

    copy: a hard link does, where nothing writes to files of the tree.
    """
    top = root / prefix.lstrip("/")
    modules, ignored = Path(sysconfig.get_path("stdlib")), shutil.ignore_patterns(*_NEEDLESS, *_OTHERS)
    shutil.copytree(modules, top / "lib" / VERSION, copy_function=copy, ignore=ignored)
    (top / "bin").mkdir()
    program = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    shutil.copy(program, top / "bin" / VERSION)
    (top / "bin/python3").symlink_to(VERSION)
    _add_libraries(root, [program, *modules.glob("lib-dynload/*.so")])
    site = top / "lib" / VERSION / "site-packages"
    site.mkdir()
    (top / "lib/python3").mkdir()
    (top / "lib/python3/dist-packages").symlink_to(f"../{VERSION}/site-packages")  # where Debian's Python looks
    return site


def add_packages(root: Path, site: Path, names: Iterable[str], copy: Copy = shutil.copy2) -> None:
    """Copy installed distributions of this environment to `site`, and the system's libraries that they need."""
    for name in names:
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            source = Path(str(found.locate_file(top)))
            if source.is_dir():
                shutil.copytree(source, site / top, copy_function=copy)
            else:
                copy(str(source), str(site / top))
    _add_libraries(root, site.rglob("*.so*"))


def _add_libraries(root: Path, programs: Iterable[Path]) -> None:
    """The shared libraries that these need and that do not lie beside them, where they look for them."""
    told = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True).stdout
    found = set(map(Path, re.findall(r"^\s+(?:\S+ => )?(/\S+) \(0x", told, re.MULTILINE)))
    system = [path.with_name(name) for path in found if path.name == "libc.so.6" for name in _OF_WHEELS]
    for path in found.union(filter(Path.exists, system)):
        if not path.is_relative_to(root):
            target = root / str(path).lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
