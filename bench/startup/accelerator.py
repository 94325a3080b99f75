"""An accelerator of this machine as containers get it: its device files, and the libraries of its driver."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import BenchError
from bench.harness.programs import output

__all__ = ["LIBRARIES", "Accelerator", "accelerator", "rules"]

LIBRARIES = "/opt/driver"
"""The folder of the libraries inside a container."""

_FIRST = Path("/dev/nvidia0")
_DRIVER = "libcuda.so.1"
_PARTS = ("libcuda.so", "libnvidia-")


@dataclass(frozen=True, slots=True)
class Accelerator:
    """devices: paths. libraries: paths on this machine, which containers have in LIBRARIES by the same names."""

    devices: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()

    @property
    def binds(self) -> dict[str, str]:
        return {path: f"{LIBRARIES}/{Path(path).name}" for path in self.libraries}


def accelerator() -> Accelerator:
    """That of this machine. Raises BenchError where there is none, or no driver."""
    if not _FIRST.exists():
        raise BenchError(f"--gpu needs an accelerator, and this machine has no {_FIRST}: leave it out")
    devices = tuple(sorted(str(path) for path in Path("/dev").glob("nvidia*") if path.is_char_device()))
    lines = [line.strip() for line in output("ldconfig", "-p").splitlines() if "x86-64" in line]
    found = {line.split()[0]: line.rpartition(" => ")[2] for line in lines if line.startswith(_PARTS)}
    if _DRIVER not in found:
        raise BenchError(f"--gpu needs the accelerator's driver, and ldconfig knows no {_DRIVER}: install it")
    return Accelerator(devices, tuple(found.values()))


def rules(devices: tuple[str, ...]) -> list[dict[str, Any]]:
    """As the specification of containers has devices that are there and may be used."""
    numbers = {path: os.stat(path) for path in devices}
    return [
        {
            "path": path,
            "type": "c",
            "major": os.major(facts.st_rdev),
            "minor": os.minor(facts.st_rdev),
            "fileMode": stat.S_IMODE(facts.st_mode),
        }
        for path, facts in numbers.items()
    ]
