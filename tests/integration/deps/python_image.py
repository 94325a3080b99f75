"""A small image with Python in it, that of the tests, and with their pip or a small one."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import pip

from bench.image.python_root import VERSION, add_python
from tests.support.deps.wheels import wheel
from tests.tools.containers import fill

__all__ = ["CONFIG", "PREFIX", "SITE", "fill_python"]

PREFIX = "/opt/python"
"""Of the Python in the image."""

SITE = f"{PREFIX}/lib/{VERSION}/site-packages"

CONFIG: dict[str, Any] = {"config": {"Env": [f"PATH={PREFIX}/bin:/bin", "PYTHONDONTWRITEBYTECODE=1"]}}
"""Of the image. Containers write no bytecode, so what is there was made by us."""


def fill_python(root: Path, *, small_pip: bool = False) -> None:
    """The tree of an image, in whose Python `old` is installed, in version 1.0. small_pip: with that of
    `tests.integration.deps.container` for a pip.
    """
    fill(root)
    site = add_python(root, PREFIX)
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
