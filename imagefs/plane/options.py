"""How a user wants an image shown, as plain values."""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

__all__ = ["TreeOptions"]


class TreeOptions(NamedTuple):
    """How an image becomes a tree. rw: an overlay on top. backing: what the kernel's EROFS mounts. confined: nosuid
    and nodev. unpack: a container has a copy of the whole tree on local disk, which is made before it starts."""

    rw: bool = False
    plane: Literal["auto", "erofs", "tree"] = "auto"
    backing: Literal["auto", "file", "loop"] = "auto"
    confined: bool = False
    unpack: bool = False

    @property
    def shares(self) -> bool:
        """True when its EROFS mount may be a copy of another's: only root can make one, and a loop device is nobody
        else's."""
        return os.geteuid() == 0 and self.plane != "tree" and self.backing != "loop"
