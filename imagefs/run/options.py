"""Options of one container, the settings of its image, and the user that it runs as, as plain values. Pure.

The user is `User` of the config, or --user, resolved by the image's own passwd and group, as Docker does it: USER and
GROUP are names or numbers; a number need not be listed. Without GROUP the group is that of the passwd entry, and the
user is in every group that lists his name; with GROUP he is in that group alone.
"""

from __future__ import annotations

import posixpath
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence

from imagefs.errors import RunError
from stripefs.errors import ConfigError
from stripefs.parsers import count, size
from stripefs.records import NamedTuple

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from typing import Any, Literal

    Network = Literal["host", "none"]

__all__ = [
    "AUTO",
    "IDS",
    "Bind",
    "ImageConfig",
    "ResourceLimits",
    "RunOptions",
    "User",
    "parse_cgroup",
    "parse_signal",
    "parse_userns",
    "resolve_user",
]

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


class ImageConfig(NamedTuple):
    """Settings of an image for containers of it, in the `config` of its OCI image config."""

    env: Sequence[str] = ()
    entrypoint: Sequence[str] = ()
    cmd: Sequence[str] = ()
    workdir: str = ""
    user: str = ""
    stop_signal: str = ""
    volumes: Sequence[str] = ()

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> ImageConfig:
        """Of the whole image config; {} is an image that says nothing. Raises RunError."""
        config = document.get("config") or {}
        if not isinstance(config, dict):
            raise RunError("the image's config is no object")
        volumes = config.get("Volumes") or {}
        if not isinstance(volumes, dict):
            raise RunError("the image's Volumes are no object")
        return cls(
            _texts(config, "Env"),
            _texts(config, "Entrypoint"),
            _texts(config, "Cmd"),
            _text(config, "WorkingDir"),
            _text(config, "User"),
            _text(config, "StopSignal"),
            sorted({posixpath.normpath("/" + str(path).lstrip("/")) for path in volumes} - {"/"}),
        )


def parse_signal(text: str) -> int:
    """SIGTERM, TERM, 15 or SIGRTMIN+3 as a number. Raises RunError."""
    if text.isascii() and text.isdigit():
        number = int(text)
    elif match := re.fullmatch(r"(?:SIG)?(RTMIN|RTMAX)([+-]\d{1,2})?", text):
        number = getattr(signal, f"SIG{match[1]}") + int(match[2] or 0)
    else:
        number = signal.Signals.__members__.get(f"SIG{text.removeprefix('SIG')}", 0)
    if number not in signal.valid_signals():
        raise RunError(f"{text!r} is no signal")
    return int(number)


def _texts(config: Mapping[str, Any], name: str) -> Sequence[str]:
    value = config.get(name) or []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise RunError(f"the image's {name} is no list of texts")
    return value


def _text(config: Mapping[str, Any], name: str) -> str:
    value = config.get(name) or ""
    if not isinstance(value, str):
        raise RunError(f"the image's {name} is no text")
    return value


_LARGEST = 2**32 - 2  # one more means "unchanged" to chown(2)


class User(NamedTuple):
    uid: int
    gid: int
    groups: Sequence[int]
    home: str


def resolve_user(user: str, passwd: bytes, group: bytes) -> User:
    """`user` is USER, USER:GROUP or "", which is uid 0. Raises RunError for a name that is not listed."""
    name, colon, group_name = user.partition(":")
    name = name or "0"
    entry = next((fields for fields in _entries(passwd, 6) if name in (fields[0], fields[2])), None)
    uid = _number(entry[2]) if entry else _number(name)
    if uid is None:
        raise RunError(f"the image has no user {name!r}", hint="its /etc/passwd lists none; give a number")
    gid = _number(entry[3]) if entry else 0
    groups: list[int] = []
    if colon and group_name:
        listed = next((fields for fields in _entries(group, 3) if group_name in (fields[0], fields[2])), None)
        gid = _number(listed[2]) if listed else _number(group_name)
        if gid is None:
            raise RunError(f"the image has no group {group_name!r}", hint="its /etc/group lists none; give a number")
    elif entry:
        found = [_number(fields[2]) for fields in _entries(group, 4) if entry[0] in fields[3].split(",")]
        groups = sorted({number for number in found if number is not None})
    return User(uid, gid or 0, groups, (entry[5] if entry else "") or "/")


def _entries(table: bytes, fields: int) -> Iterator[list[str]]:
    """The lines that have so many fields and a number in the third; others say nothing."""
    for line in table.decode("utf-8", "replace").split("\n"):
        entry = line.strip().split(":")
        if len(entry) >= fields and entry[0].strip("#+-") and _number(entry[2]) is not None:
            yield entry


def _number(text: str) -> int | None:
    if not (text.isascii() and text.isdigit()) or len(text) > 10:
        return None
    return int(text) if int(text) <= _LARGEST else None
