"""Text that containerd, Slurm and systemd print."""

from __future__ import annotations

import json
import re
from typing import Any

from imagefs.errors import FormatError
from imagefs.startup.importers.events import Imported, duration_ns, json_objects, time_ns

__all__ = ["hosts", "read_containerd", "read_slurm", "read_systemd"]

_LINE = re.compile(r"(\d{4}-\d\d-\d\d \S+ [+-]\d{4} \S+) (\S+) (/\S+) (\{.*\})")

_NEEDED = ("JobID", "Submit", "Start")
_NONE = ("", "Unknown", "None", "N/A", "None assigned")
_MANY = 100_000

_TIME = re.compile(r"Startup finished in (.+?)(?: = .+)?")
_PHASE = re.compile(r"(.+?) \((firmware|loader|kernel|initrd|soft reboot|userspace)\)")
_REACHED = re.compile(r"(\S+) reached after (.+) in userspace\.?")
_BLAME = re.compile(r"\s*((?:[\d.]+\w+ )+)(\S+\.\w+)")
_BEFORE = ("firmware", "loader")


def read_containerd(text: str, imported: Imported) -> None:
    """The lines that `ctr events` prints, of one node a file: a time, a namespace, a topic and a JSON object. No line
    names the node: it is --node, or else the file's name.

    A layer's unpacking is the span from its `/snapshot/prepare` to `/snapshot/commit`, a container's start that from
    the first event with its id to `/tasks/start`; `/images/create` is an instant.
    """
    node = imported.file.stem
    prepared: dict[str, tuple[int, int]] = {}
    images: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        found = _LINE.fullmatch(line.strip())
        with imported.row(number):
            if not found:
                raise ValueError("not TIME NAMESPACE TOPIC {…}, as `ctr events` prints it")
            at, fields = time_ns(found[1]), json.loads(found[4])
            topic = found[3]
            if topic == "/snapshot/prepare":
                prepared[fields["key"]] = at, number
            elif topic == "/snapshot/commit":
                begun = prepared.pop(fields["key"], None)
                if begun is None:
                    raise ValueError(f"the beginning of snapshot {fields['key']} is not in the file")
                imported.span("image", f"unpack {fields['name']}", begun[0], at, node=node)
            elif topic == "/images/create":
                imported.event("instant", "image", "created", at, node=node, facts={"image": fields["name"]})
            elif topic == "/containers/create":
                images[fields["id"]] = fields.get("image", "")
                prepared.setdefault(fields["id"], (at, number))
            elif topic == "/tasks/start":
                container = fields["container_id"]
                begun = prepared.pop(container, None)
                if begun is None:
                    raise ValueError(f"the creation of container {container} is not in the file")
                imported.span("container", container, begun[0], at, node=node,
                              facts={"image": images.get(container, "")})  # fmt: skip
            else:
                imported.pass_over(topic)
                if topic in ("/snapshot/remove", "/containers/delete"):  # given up, or over
                    prepared.pop(fields.get("key", fields.get("id", "")), None)
    for key, (_, number) in prepared.items():
        imported.reject(number, f"{key} began and has no end in the file")


def read_slurm(text: str, imported: Imported) -> None:
    """`sacct --parsable2 --format=JobID,JobName,Submit,Eligible,Start,End,NNodes,NodeList[,Restarts]`, which prints
    local times without their zone; they are read in --zone, or in that of this host.

    Each node of a job has `queue` spans from Submit to Start and, where steps are in the output, a `setup` span from
    Start to the Start of the first step.
    """
    lines = text.splitlines()
    heads = lines[0].split("|") if lines else []
    missing = [name for name in _NEEDED if name not in heads]
    if missing:
        raise FormatError(
            f"{imported.file} has no column {missing[0]} in its first line",
            hint="write it with sacct --parsable2 --format=JobID,JobName,Submit,Eligible,Start,End,NNodes,NodeList",
        )
    jobs: dict[str, tuple[int, dict[str, str]]] = {}
    steps: dict[str, int] = {}
    for number, line in enumerate(lines[1:], 2):
        cells = line.split("|")
        with imported.row(number):
            if len(cells) != len(heads):
                raise ValueError(f"{len(cells)} fields, and the first line has {len(heads)}")
            row = dict(zip(heads, cells, strict=True))
            job, _, step = row["JobID"].partition(".")
            if not step:
                if row["Start"] in _NONE:
                    imported.pass_over("not started")
                else:
                    jobs[f"{job} {row['Submit']}"] = number, row
            elif step.isdecimal() and row["Start"] not in _NONE:
                at = time_ns(row["Start"], imported.given.zone)
                steps[job] = min(at, steps.get(job, at))
            else:
                imported.pass_over(f"step {step}")
    for number, row in jobs.values():
        with imported.row(number):
            _job(row, steps.get(row["JobID"]), imported)


def _job(row: dict[str, str], step: int | None, imported: Imported) -> None:
    zone = imported.given.zone
    submit, start = time_ns(row["Submit"], zone), time_ns(row["Start"], zone)
    eligible = submit if row.get("Eligible", "") in _NONE else time_ns(row["Eligible"], zone)
    if start < submit:
        raise ValueError(f"Start {row['Start']} is before Submit {row['Submit']}")
    restarts = row.get("Restarts", "")
    who: dict[str, Any] = {"job": row.get("JobName", ""), "run": row["JobID"],
                           "attempt": int(restarts) if restarts.isdecimal() else None}  # fmt: skip
    nodes = [] if row.get("NodeList", "") in _NONE else hosts(row["NodeList"])
    count = row.get("NNodes", "")
    if nodes and count.isdecimal() and int(count) != len(nodes):
        raise ValueError(f"NNodes is {count}, and NodeList {row['NodeList']} has {len(nodes)}")
    facts = {"cause": "queue", "nodes": int(count) if count.isdecimal() else len(nodes) or None}
    facts = {key: value for key, value in facts.items() if value}
    begun = min(max(submit, eligible), start)
    for node in nodes or [""]:
        if submit < begun:
            imported.span("queue", "not eligible", submit, begun, kind="wait", facts=facts, node=node, **who)
        imported.span("queue", "eligible", begun, start, kind="wait", facts=facts, node=node, **who)
        if node and step is not None and step >= start:
            imported.span("setup", "before the first step", start, step, node=node, **who)


def hosts(text: str) -> list[str]:
    """The names that a host list such as `gpu[001-003,7],login1` stands for. Raises ValueError."""
    names = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        grown = [""]
        for plain, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", part):
            ends = [plain] if plain else [one for piece in ranges.split(",") for one in _range(piece)]
            if len(grown) * len(ends) > _MANY:
                raise ValueError(f"the host list {text} names more than {_MANY} nodes")
            grown = [name + end for name in grown for end in ends]
        names += grown
    return names


def _range(piece: str) -> list[str]:
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", piece)
    if not found or int(found[2] or found[1]) - int(found[1]) not in range(_MANY):
        raise ValueError(f"{piece!r} is no range of a host list")
    return [f"{number:0{len(found[1])}}" for number in range(int(found[1]), int(found[2] or found[1]) + 1)]


def read_systemd(text: str, imported: Imported) -> None:
    """A boot as `systemd-analyze plot --json=short`, `systemd-analyze time` or `blame` prints it.

    All three count from the start of the kernel and name neither its date nor the node: --origin says the first, and
    --node or the file's name the second. The stage is `container`: what must be there before a command can be executed.
    `blame` tells durations alone, so its lines become instants at the origin with the fact `duration_ns`.
    """
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
