"""The build backend of this distribution: setuptools, after `snapshots_pb2` was made of `snapshots.proto`.

The module is made beside its source, where an editable installation and a wheel both find it. `python -m
imagefs.snapshotter.proto.build` makes it anew.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "generate",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

_FOLDER = Path(__file__).parent
_ROOT = _FOLDER.parents[2]


def generate() -> None:
    """Make `snapshots_pb2.py` and its types. Raises CalledProcessError; grpcio-tools brings the compiler."""
    source = (_FOLDER / "snapshots.proto").relative_to(_ROOT)
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--python_out=.", "--pyi_out=.", str(source)]
    subprocess.run(command, check=True, cwd=_ROOT, env={**os.environ, "PYTHONWARNINGS": "ignore"})


def build_wheel(*args: Any, **kwargs: Any) -> str:
    """PEP 517."""
    generate()
    return str(build_meta.build_wheel(*args, **kwargs))


def build_editable(*args: Any, **kwargs: Any) -> str:
    """PEP 660."""
    generate()
    return str(build_meta.build_editable(*args, **kwargs))


def build_sdist(*args: Any, **kwargs: Any) -> str:
    """PEP 517. The source distribution has the source alone: it is compiled where it is built."""
    return str(build_meta.build_sdist(*args, **kwargs))


if __name__ == "__main__":
    generate()
