"""Checks of the kernel's features: tried where we are root, told by its version where not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping

from imagefs.doctor.finding import Finding, State
from imagefs.doctor.trial import TRIALS

__all__ = ["judge", "kernel_findings", "release"]

_TRIED_WITHIN = 60.0
"""Seconds for all trials, which take a tenth of one."""

_SINCE = {"erofs-file": (6, 12), "erofs-loop": (5, 16), "overlay": (5, 16), "fuse": (4, 20), "fuse-resend": (6, 9)}
"""By trial, the Linux that brought it. EROFS takes several devices since 5.16."""

_FOUND = {
    "erofs-file": "EROFS from files, with several devices",
    "erofs-loop": "EROFS from loop devices",
    "overlay": "an overlay on EROFS, with its upper directory in the cache",
    "fuse": "FUSE",
    "fuse-resend": "FUSE_NOTIFY_RESEND",
}

_COSTS: dict[str, tuple[State, str, str]] = {
    "erofs-file": (
        "warn",
        "every device of an image needs a loop device, which takes memory and caches its bytes twice",
        "take Linux 6.12 or later; where the cache lies on an overlay, move it to ext4 or xfs (--cache)",
    ),
    "erofs-loop": (
        "fail",
        "the kernel can mount no image: the tree plane only, no leases, no snapshotter",
        "modprobe erofs loop, or take a kernel with both",
    ),
    "overlay": (
        "fail",
        "no container and no `imagefs mount --rw` can write",
        "modprobe overlay, and have the cache on ext4 or xfs (--cache)",
    ),
    "fuse": ("fail", "neither images nor stripefs mounts can be served", "modprobe fuse"),
    "fuse-resend": (
        "warn",
        "a worker that is killed or replaced fails the calls under way and the files that are open",
        "take Linux 6.9 or later",
    ),
}


def kernel_findings(folder: str) -> list[Finding]:
    """Findings about the kernel. folder: of the cache, which is made where it is missing, and tried on by root."""
    version = release(os.uname().release)
    if os.geteuid() != 0:
        return judge(version, {})
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        done = subprocess.run(
            [sys.executable, "-P", "-m", "imagefs.doctor.trial", folder],
            capture_output=True,
            text=True,
            timeout=_TRIED_WITHIN,
        )
        tried = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        trouble = Finding(
            "kernel.trial", "warn", f"nothing could be tried: {error}", "what follows is a guess by version"
        )
        return [trouble, *judge(version, {})]
    return judge(version, tried)


def release(text: str) -> tuple[int, int]:
    """Major and minor of what uname(2) calls the release; (0, 0) where it says something else."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def judge(version: tuple[int, int], tried: Mapping[str, str]) -> list[Finding]:
    """A finding for each trial: by its outcome ("ok" or why not), or by the kernel's version where it was not tried."""
    findings = []
    for name in TRIALS:
        if name == "erofs-loop" and tried.get("erofs-file") == "ok":
            continue  # nothing needs it
        since = "{}.{}".format(*_SINCE[name])
        outcome = tried.get(name) or ("ok" if version >= _SINCE[name] else f"not in Linux {version[0]}.{version[1]}")
        how = "works" if name in tried else f"in Linux since {since}, as root could try"
        if outcome == "ok":
            findings.append(Finding(f"kernel.{name}", "ok", f"{_FOUND[name]}: {how}"))
        else:
            state, cost, remedy = _COSTS[name]
            findings.append(Finding(f"kernel.{name}", state, f"{_FOUND[name]}: {outcome}", cost, remedy))
    return findings
