"""A small image with Python in it, that of the tests, and with their pip or a small one."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pip

from tests.deps.wheels import wheel
from tests.imagefs.containers import fill

__all__ = ["CONFIG", "PREFIX", "SITE", "fill_python"]

PREFIX = "/opt/python"
"""Of the Python in the image."""

_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
SITE = f"{PREFIX}/lib/{_VERSION}/site-packages"

CONFIG: dict[str, Any] = {"config": {"Env": [f"PATH={PREFIX}/bin:/bin", "PYTHONDONTWRITEBYTECODE=1"]}}
"""Of the image. Containers write no bytecode, so what is there was made by us."""

_NEEDLESS = ("test", "tests", "config-*", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages")
_OTHERS = ("dist-packages", "*.opt-*.pyc", "EXTERNALLY-MANAGED", "LICENSE.txt")


def fill_python(root: Path, *, small_pip: bool = False) -> None:
    """The tree of an image, in whose Python `old` is installed, in version 1.0. small_pip: with that of
    `tests.deps.container` for a pip.
    """
    fill(root)
    top = root / PREFIX.lstrip("/")
    modules = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(modules, top / "lib" / _VERSION, ignore=shutil.ignore_patterns(*_NEEDLESS, *_OTHERS))
    (top / "bin").mkdir()
    program = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    shutil.copy(program, top / "bin" / _VERSION)
    (top / "bin/python3").symlink_to(_VERSION)
    _add_libraries(root, [program, *modules.glob("lib-dynload/*.so")])
    site = root / SITE.lstrip("/")
    site.mkdir()
    own = Path(pip.__file__).parents[1]
    if small_pip:
        (site / "pip").mkdir()
        (site / "pip/__init__.py").write_text(f"__version__ = {pip.__version__!r}\n")
        shutil.copy(Path(__file__).parent / "container/small_pip.py", site / "pip/__main__.py")
    else:
        shutil.copytree(own / "pip", site / "pip")
    shutil.copytree(own / f"pip-{pip.__version__}.dist-info", site / f"pip-{pip.__version__}.dist-info")
    files = {"old/__init__.py": "VERSION = 1\n", "old/legacy.py": "", "older.py": ""}
    with zipfile.ZipFile(wheel(root.parent, "old", files)) as archive:
        archive.extractall(site)


def _add_libraries(root: Path, programs: Iterable[Path]) -> None:
    """The shared libraries that these need, where they look for them."""
    told = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True).stdout
    for path in set(re.findall(r"^\s+(?:\S+ => )?(/\S+) \(0x", told, re.MULTILINE)):
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
