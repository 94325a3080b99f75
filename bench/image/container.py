"""Starting a container of a bundle, and the containers that a killed benchmark left."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.programs import output, run
from bench.started import Start, started

__all__ = ["remove_containers", "runc"]

_PREFIX = "bench-image-"


@contextmanager
def runc(bundle: Path, name: str) -> Iterator[Start]:
    """The container of a bundle that umoci unpacked. Raises BenchError."""
    config = json.loads((bundle / "config.json").read_text())
    config["process"]["terminal"] = False
    (bundle / "config.json").write_text(json.dumps(config))
    container = f"{_PREFIX}{name}-{os.getpid()}"
    try:
        with started(["runc", "run", "--bundle", str(bundle), container]) as start:
            yield start
    finally:
        if container in _containers():
            run("runc", "delete", "--force", container)


def remove_containers() -> None:
    """Those that a killed benchmark left behind."""
    for container in _containers():
        run("runc", "delete", "--force", container)


def _containers() -> list[str]:
    return [name for name in output("runc", "list", "--quiet").split() if name.startswith(_PREFIX)]
