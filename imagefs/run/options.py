"""Options of one container, as plain values."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence

from stripefs.errors import ConfigError
from stripefs.parsers import count, size
from stripefs.records import NamedTuple

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from typing import Any, Literal

    Network = Literal["host", "none"]

__all__ = ["AUTO", "IDS", "Bind", "ResourceLimits", "RunOptions", "parse_cgroup", "parse_userns"]

_LEAST_MEMORY, _MOST_MEMORY = 6 << 20, 1 << 50
"""The least is Docker's: with less, runtimes do not get as far as the command."""

_LEAST_CPUS, _MOST_CPUS = 0.01, 8192.0
"""A quota of the kernel is a millisecond at least (kernel/sched/core.c), of our period of 100; NR_CPUS at most."""

_MOST_PROCESSES = 1 << 22
"""PID_MAX_LIMIT of the kernel."""


IDS = 65536
"""Users, and groups, of a user namespace: as many as images number, nobody (65534) included."""

AUTO = -1
"""Stands for a first id that is chosen for each container."""


class Bind(NamedTuple):
    """`source` of the host at `target` in the container. `directory` is known once somebody looked at the host.

    mapped: in a user namespace its files belong to the users of the same number there. made: a directory that a
    read-only image gets where it has none. inert: no program, setuid bit or device there has an effect.
    """

    source: str
    target: str
    writable: bool = True
    directory: bool = True
    mapped: bool = False
    made: bool = False
    inert: bool = False

    @classmethod
    def parse(cls, text: str) -> Bind:
        """SRC:DST, and behind one more colon `ro` or `rw`, and `idmap`, with a comma. Raises ConfigError."""
        parts = text.split(":")
        modes = parts.pop().split(",") if len(parts) == 3 else []
        if len(parts) != 2 or not parts[0] or not {*modes} <= {"ro", "rw", "idmap"} or {"ro", "rw"} <= {*modes}:
            raise ConfigError(f"--bind {text} is not SRC:DST[:ro|rw][,idmap]")
        source, target = parts
        if not target.startswith("/") or ".." in target.split("/") or not target.strip("/"):
            raise ConfigError(f"--bind {text}: DST is no absolute path below /")
        return cls(source, posixpath.normpath("/" + target.strip("/")), "ro" not in modes, mapped="idmap" in modes)


class ResourceLimits(NamedTuple):
    """Of the container's cgroup. memory: bytes; cpus: processors, 1.5 for one and a half. 0: none."""

    memory: int = 0
    cpus: float = 0.0
    processes: int = 0

    @classmethod
    def parse(cls, memory: str = "", cpus: str = "", processes: str = "") -> ResourceLimits:
        """From the texts of --memory, --cpus and --pids-limit; "" and 0 are none. Raises ConfigError."""
        given = {"--memory": (_memory, memory), "--cpus": (_cpus, cpus), "--pids-limit": (_processes, processes)}
        values: list[Any] = []
        for flag, (parse, text) in given.items():
            try:
                values.append(parse(text) if text else 0)
            except ConfigError as error:
                raise ConfigError(f"{flag}: {error.message}", hint=error.hint) from None
        return cls(*values)


def _memory(text: str) -> int:
    return 0 if text.strip() == "0" else size(_LEAST_MEMORY, _MOST_MEMORY)(text)


def _cpus(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if found != found:  # not a number, which `math` would be loaded for
        raise ConfigError(f"{text!r} is not a number of processors such as 2 or 1.5")
    if found and not _LEAST_CPUS <= found <= _MOST_CPUS:
        raise ConfigError(f"{text} is outside {_LEAST_CPUS:g} to {_MOST_CPUS:g}")
    return found


def _processes(text: str) -> int:
    return count(0, _MOST_PROCESSES)(text)


def parse_cgroup(text: str) -> str:
    """The cgroup of --cgroup-parent, from the top of every hierarchy; "" is the top. Raises ConfigError."""
    if ".." in text.split("/") or "\0" in text:
        raise ConfigError(f"--cgroup-parent {text} is no path of a cgroup", hint="give one such as /batch/job7")
    return posixpath.normpath("/" + text.strip("/"))


def parse_userns(text: str) -> int:
    """The host's id of the container's root: 0 for "host", AUTO for "auto", or the number. Raises ConfigError."""
    if text in ("host", "auto"):
        return AUTO if text == "auto" else 0
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) <= 2**32 - 1 - IDS:
        raise ConfigError(f"--userns {text} is not auto, host, or the first of {IDS} user ids of the host, from 1 on")
    return int(text)


class RunOptions(NamedTuple):
    """One run. Values that are empty or None are left to the image.

    command: takes the place of the image's Cmd, behind its Entrypoint. entrypoint: takes the place of that; () is none.
    env: NAME=VALUE, or NAME for the value it has outside. hostname: "" is the host's, or the container's own without
    the host's network. terminal: None is one where stdin and stdout are. runtime: "auto", or a name or path.
    cgroup_parent: the container's cgroup is made below it in every hierarchy. added, dropped: capabilities by their
    whole names, or "ALL". seccomp: "default", "unconfined", or the path of a profile in Docker's form.
    no_new_privileges: setuid, setgid and file capabilities have no effect. first_id: the host's user and group that
    root is in the container, 0 without a user namespace, or AUTO. prepared: called before the container is made, when
    its image is there; it comes back when the sources of binds are there, and raises StripefsError. aside: the command
    is none of the user's, so a signal that comes meanwhile ends the container and is not passed on.
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
    limits: ResourceLimits = ResourceLimits()
    cgroup_parent: str = "/"
    added: Sequence[str] = ()
    dropped: Sequence[str] = ()
    seccomp: str = "default"
    no_new_privileges: bool = False
    first_id: int = 0
    prepared: Callable[[], None] | None = None
    aside: bool = False
