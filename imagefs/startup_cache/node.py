"""The facts of this node that decide what a compiler makes: processor, accelerators and their driver."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from imagefs.startup_cache.key import Facts

__all__ = ["facts"]

_MODEL = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU architecture", "CPU variant", "CPU part")
_INSTRUCTIONS = ("flags", "Features", "isa")

_NVIDIA_DRIVER = re.compile(r"^NVRM version:.*?\s(\d+\.\d[\d.]*)", re.MULTILINE)
_NVIDIA_MODEL = re.compile(r"^Model:\s*(.*\S)", re.MULTILINE)
_AMD_TARGET = re.compile(r"^gfx_target_version\s+([1-9]\d*)", re.MULTILINE)


def facts(root: Path = Path("/")) -> Facts:
    """Those that /proc and /sys below `root` tell. Without an accelerator there are no models and no driver."""
    nvidia = [_NVIDIA_MODEL.search(_text(one)) for one in root.glob("proc/driver/nvidia/gpus/*/information")]
    amd = [_AMD_TARGET.search(_text(one)) for one in root.glob("sys/class/kfd/kfd/topology/nodes/*/properties")]
    models = [*(found[1] for found in nvidia if found), *(f"gfx {found[1]}" for found in amd if found)]
    drivers = _NVIDIA_DRIVER.findall(_text(root / "proc/driver/nvidia/version"))
    drivers += [f"amdgpu {one}" for one in _text(root / "sys/module/amdgpu/version").split()]
    return Facts(_processor(_text(root / "proc/cpuinfo")), sorted(set(models)), " ".join(drivers))


def _processor(cpuinfo: str) -> Mapping[str, str]:
    """Model and instructions of the first processor, which all of a machine share."""
    found = {}
    for line in cpuinfo.partition("\n\n")[0].splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        if name in _MODEL:
            found[name] = value
        elif name in _INSTRUCTIONS:  # a few kilobytes, of which nobody reads more than that they differ
            found["instructions"] = hashlib.sha256(" ".join(sorted(value.split())).encode()).hexdigest()[:16]
    return found


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):  # no such device, or no such driver
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
