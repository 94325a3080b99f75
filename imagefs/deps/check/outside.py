"""What a container's installer wrote outside the targets that were declared for it.

That is lost to whoever mounts the snapshot of the targets alone, so it is told, file by file. What programs write for a
while only, or could make anew, does not count.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence

from imagefs.deps.check.finding import Finding
from imagefs.deps.check.sites import inside
from imagefs.deps.inventory import OPAQUE, Facts, Inventory

__all__ = ["IGNORED", "TRANSIENT", "check_outside", "matches"]

TRANSIENT = (
    *("/tmp", "/var/tmp", "/run", "/var/run", "/dev", "/proc", "/sys"),  # noqa: S108 memory, or the kernel's
    *("/root/.cache", "/home/*/.cache", "/var/cache"),  # pip's and uv's are here
    *("/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/etc/mtab"),  # runtimes mount theirs there
)
"""Patterns of what is never captured, but where a target lies inside of it."""
IGNORED = (*TRANSIENT, "*/__pycache__")
"""Patterns of what may be written outside targets: also bytecode of the interpreter and the installer."""


def matches(path: str, patterns: Sequence[str]) -> bool:
    """Whether an absolute path matches one of these, which are as a shell's but that * stands for / too. One that
    matches a directory holds for all below it."""
    return any(fnmatch.fnmatchcase(path, one) or fnmatch.fnmatchcase(path, f"{one}/*") for one in patterns)


def check_outside(
    inventory: Inventory, targets: Sequence[str], ignored: Sequence[str] = IGNORED, lower: str = ""
) -> list[Finding]:
    """One finding for each change in an upper directory that is in none of `targets`, absolute paths, nor ignored.

    lower: where the image is mounted that the upper directory was above: a directory that is as there was only copied
    for something in it. Without it, directories count only when they hide what is there.
    """
    wanted = [target.strip("/") for target in targets]
    found = []
    for path, facts in sorted(inventory.entries.items()):
        if (
            not path
            or any(inside(path, target) or inside(target, path) for target in wanted)
            or matches(f"/{path}", ignored)
        ):
            continue
        if what := _change(inventory, path, facts, lower):
            found.append(Finding("outside", f"/{path}", what))
    return found


def _change(inventory: Inventory, path: str, facts: Facts, lower: str) -> str:
    """What was done there; "" for nothing."""
    if facts.is_whiteout:
        return "removed"
    if not facts.is_directory:
        return "written"
    if OPAQUE in os.listxattr(inventory.path(path)):
        return "replaced"
    if not lower:
        return ""
    try:
        before = os.lstat(os.path.join(lower, path))
    except FileNotFoundError:
        return "made"
    same = (before.st_mode, before.st_uid, before.st_gid) == (facts.mode, facts.uid, facts.gid)
    return "" if same else "changed"
