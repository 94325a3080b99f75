"""systemd: a boot as `systemd-analyze plot --json=short`, `systemd-analyze time` or `blame` prints it.

All three count from the start of the kernel and name neither its date nor the node: --origin says the first, and --node
or the file's name the second. The stage is `container`: what must be there before a command can be executed. `blame`
tells durations alone, so its lines become instants at the origin with the fact `duration_ns`.
"""

from __future__ import annotations

import re

from imagefs.errors import FormatError
from imagefs.startup.importers.events import Imported, duration_ns, json_objects

__all__ = ["read"]

_TIME = re.compile(r"Startup finished in (.+?)(?: = .+)?")
_PHASE = re.compile(r"(.+?) \((firmware|loader|kernel|initrd|soft reboot|userspace)\)")
_REACHED = re.compile(r"(\S+) reached after (.+) in userspace\.?")
_BLAME = re.compile(r"\s*((?:[\d.]+\w+ )+)(\S+\.\w+)")
_BEFORE = ("firmware", "loader")


def read(text: str, imported: Imported) -> None:
    origin = imported.given.origin
    if origin is None:
        raise FormatError(
            "systemd-analyze does not say when a boot was",
            hint="give --origin, the time that `systemctl show --property=KernelTimestamp` prints on that node",
        )
    if text.lstrip()[:1] in ("[", "{"):
        _plot(text, origin, imported)
        return
    userspace = 0
    for number, line in enumerate(text.splitlines(), 1):
        reached, blamed = _REACHED.fullmatch(line.strip()), _BLAME.fullmatch(line)
        with imported.row(number):
            if finished := _TIME.fullmatch(line.strip()):
                userspace = _phases(finished[1], origin, imported)
            elif reached:
                at = origin + userspace + duration_ns(reached[2])
                imported.event("instant", "container", reached[1], at, node=imported.file.stem)
            elif blamed:
                imported.event("instant", "container", blamed[2], origin, node=imported.file.stem,
                               facts={"duration_ns": duration_ns(blamed[1])})  # fmt: skip
            elif line.strip():
                raise ValueError("not a line of `systemd-analyze time` or `blame`")


def _phases(text: str, origin: int, imported: Imported) -> int:
    """A span for each phase; how long after the origin the userspace begins."""
    phases = []
    for part in text.split(" + "):
        found = _PHASE.fullmatch(part.strip())
        if not found:
            raise ValueError(f"{part.strip()!r} is not a phase of a boot")
        phases.append((found[2], duration_ns(found[1])))
    at, userspace = origin - sum(lasted for name, lasted in phases if name in _BEFORE), 0
    for name, lasted in phases:
        userspace = at - origin if name == "userspace" else userspace
        imported.span("container", f"boot {name}", at, at + lasted, node=imported.file.stem)
        at += lasted
    return userspace


def _plot(text: str, origin: int, imported: Imported) -> None:
    """Units with their times in microseconds; null or 0 where a unit has none."""
    for line, unit in json_objects(text, imported):
        name, began, done = unit.get("name"), unit.get("activating"), unit.get("activated")
        if not isinstance(name, str) or not isinstance(began, int | None) or not isinstance(done, int | None):
            imported.reject(line, "no unit with name, activating and activated")
        elif not began:
            imported.pass_over("unit without a time of activation")
        elif not done or done < began:
            imported.reject(line, f"{name} began and was not activated")
        else:
            with imported.row(line):
                imported.span("container", name, origin + began * 1000, origin + done * 1000, node=imported.file.stem)
