"""What a user asks of one container, as plain values."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stripefs.errors import ConfigError

__all__ = ["Bind", "Limits", "Network", "RunOptions"]

Network = Literal["host", "none"]


@dataclass(frozen=True, slots=True)
class Bind:
    """`source` of the host at `target` in the container. `directory` is known once somebody looked at the host."""

    source: str
    target: str
    writable: bool = True
    directory: bool = True

    @classmethod
    def parse(cls, text: str) -> Bind:
        """SRC:DST, SRC:DST:ro or SRC:DST:rw. Raises ConfigError."""
        parts = text.split(":")
        mode = parts.pop() if len(parts) == 3 else "rw"
        if len(parts) != 2 or mode not in ("ro", "rw") or not parts[0]:
            raise ConfigError(f"--bind {text} is not SRC:DST[:ro|rw]")
        source, target = parts
        if not target.startswith("/") or ".." in target.split("/") or not target.strip("/"):
            raise ConfigError(f"--bind {text}: DST is no absolute path below /")
        return cls(source, posixpath.normpath("/" + target.strip("/")), mode == "rw")


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the container's cgroup. memory: bytes; cpus: processors, 1.5 for one and a half. 0: none."""

    memory: int = 0
    cpus: float = 0.0
    processes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """One run. What is empty or None is left to the image.

    command: takes the place of the image's Cmd, behind its Entrypoint. entrypoint: takes the place of that; () is none.
    env: NAME=VALUE, or NAME for the value it has outside. hostname: "" is the host's, or the container's own without
    the host's network. terminal: None is one where stdin and stdout are. runtime: "auto", or a name or path.
    cgroup_parent: the container's cgroup is made below it in every hierarchy.
    """

    command: Sequence[str] = ()
    entrypoint: Sequence[str] | None = None
    writable: bool = False
    binds: Sequence[Bind] = ()
    env: Sequence[str] = ()
    workdir: str = ""
    user: str = ""
    hostname: str = ""
    network: Network = "host"
    devices: Sequence[str] = ()
    terminal: bool | None = None
    runtime: str = "auto"
    limits: Limits = Limits()
    cgroup_parent: str = "/"
