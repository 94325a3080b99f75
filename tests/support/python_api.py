"""Files that the tests of the Python API write and read, and stores that are slow or fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.uploads import MIB, content

__all__ = ["LAYOUTS", "MIB", "content", "names", "python", "spread"]

LAYOUTS = ("concat", "striped", "plain")


def spread(root: Path, **parameters: object) -> str:
    """The URL of a source spread over four fast hosts, with blocks of 1 MiB."""
    given = {"hosts": 4, "rate": "4GB/s", "burst": "64MiB", "block-size": "1MiB", **parameters}
    return f"throttled+file://{root}?" + "&".join(f"{name}={value}" for name, value in given.items())


def names(root: Path) -> set[str]:
    """All that is below `root`, hidden things included, but for the notes of simulated hosts."""
    found = {str(path.relative_to(root)) for path in root.rglob("*")}
    return {name for name in found if not name.startswith(".stripefs-hosts")}


def python(program: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """A Python program of its own, which must end by itself and say nothing but what it prints."""
    command = [sys.executable, "-W", "error", "-c", program, *map(str, arguments)]
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, timeout=120, **options
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done
