"""The tree of a small image in which this machine's Python runs, for tests and for the demonstration.

Interpreter and standard library are copied below a prefix, without tests and without packages, and the shared libraries
that they need to where the dynamic linker looks for them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

__all__ = ["VERSION", "add_packages", "add_python"]

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"

_NEEDLESS = ("test", "tests", "config-*", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages")
_OTHERS = ("dist-packages", "*.opt-*.pyc", "EXTERNALLY-MANAGED", "LICENSE.txt")


def add_python(root: Path, prefix: str) -> Path:
    """Copy the interpreter and its library to `prefix` in the tree at `root`; the empty folder of its packages."""
    top = root / prefix.lstrip("/")
    modules = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(modules, top / "lib" / VERSION, ignore=shutil.ignore_patterns(*_NEEDLESS, *_OTHERS))
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


def add_packages(root: Path, site: Path, names: Iterable[str]) -> None:
    """Copy installed distributions of this environment to `site`, and the system's libraries that they need."""
    for name in names:
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            source = Path(str(found.locate_file(top)))
            if source.is_dir():
                shutil.copytree(source, site / top)
            else:
                shutil.copy(source, site)
    _add_libraries(root, site.rglob("*.so*"))


def _add_libraries(root: Path, programs: Iterable[Path]) -> None:
    """The shared libraries that these need and that do not lie beside them, where they look for them."""
    told = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True).stdout
    for path in set(re.findall(r"^\s+(?:\S+ => )?(/\S+) \(0x", told, re.MULTILINE)):
        target = root / path.lstrip("/")
        if not Path(path).is_relative_to(root):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
