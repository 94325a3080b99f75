"""Flags of `imagefs run` and of the commands of `imagefs deps` that install, for `stripefs.cli.fastpath` and for click,
and the values of a line that is written plainly.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from imagefs.config import IMAGEFS, Settings
from imagefs.daemon.protocol import Recording
from imagefs.reference import TAG
from stripefs.cli.fastpath import Flag, read
from stripefs.errors import ConfigError
from stripefs.options import Given
from stripefs.records import NamedTuple

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from typing import Any

    from imagefs.deps.key import Request
    from imagefs.deps.resolver import LockCache, RunResolver

__all__ = [
    "CONFIG",
    "DEPS",
    "JOB",
    "PLANE",
    "RECORDING",
    "REQUEST",
    "RUN",
    "SECTIONS",
    "TREE",
    "WITHOUT",
    "CommandLine",
    "is_job_file",
    "locks_of",
    "read_line",
    "recording",
    "request_of",
]

REQUEST = (
    Flag("target", "targets", "The directory that is installed into.", "texts", "DIR"),
    Flag("requirements", "requirements", "A requirements file that the command reads by itself.", "texts", "FILE"),
    Flag("input", "inputs", "A file or directory that is an input of the installation.", "texts", "PATH"),
    Flag("env", "env", "A variable that is an input of the installation.", "texts", "NAME"),
    Flag("python", "python", "The interpreter that installs and imports.  [the command's, else python3]",
         metavar="PATH"),
    Flag("cuda", "cuda", "The version of CUDA that it is for.", metavar="VERSION"),
    Flag("driver", "driver", "The version of the driver that it is for.", metavar="VERSION"),
    Flag("cpu-level", "cpu_level", "The least processor of a mixed fleet, such as x86-64-v2.  [this one's]",
         metavar="LEVEL"),
    Flag("namespace", "namespace", "A prefix that separates snapshots of different teams.", metavar="NAME"),
    Flag("salt", "salt", "Any text: with another one it is another snapshot.", metavar="TEXT"),
    Flag("epoch", "epoch", "Treat changeable inputs as unchanged while this text is the same.", metavar="TEXT"),
    Flag("strict", "strict", "Refuse requirements that are not pinned, and do not resolve them.", "switch"),
    Flag("allow-unpinned", "allow_unpinned", "Treat changeable inputs as unchanged for good.", "switch"),
)  # fmt: skip


def request_of(values: Mapping[str, Any], command: Sequence[str]) -> Request:
    """The request of these values of `REQUEST`, by field, and this command, in the working directory, by this user.

    Raises ConfigError.
    """
    from imagefs.deps.key import Request, Target  # `imagefs run` reads the flags, and seldom asks
    from stripefs.osutil import umask

    if "" in values["targets"]:
        raise ConfigError("--target names nothing", hint="is the variable set that it comes from?")
    targets = [Target(os.path.realpath(path), os.geteuid(), os.getegid(), umask()) for path in values["targets"]]
    others = {flag.field: values[flag.field] for flag in REQUEST if flag.field != "targets"}
    return Request(targets, tuple(command), os.getcwd(), **others)


def locks_of(settings: Settings, run: RunResolver | None = None, *, make: bool = True) -> LockCache:
    """The cache of locks, which resolves requirements with these settings, and keeps the answers in the cache and in
    the named store.

    run: the resolver, that of this host by default. make: whether a store that is not there yet is made.
    """
    from imagefs.deps.resolver import LockCache

    store = settings.store if settings.deps.store else None
    return LockCache(settings.daemon.cache, store, settings.deps.resolve_age, run, make=make)


CONFIG = Flag("config", "config", "Read this TOML file instead of the usual ones.", metavar="FILE")
RECORDING = (
    Flag("ready-file", "ready_file", "The start is over when this file appears.", metavar="FILE"),
    Flag("no-record", "no_record", "Leave no trace of this start.", "switch"),
    Flag("workload", "workload", "The name of the start for its record and replay.", metavar="NAME",
         default="default"),
)  # fmt: skip
PLANE = Flag("plane", "plane", "Server of the tree, as for mount.", default="auto",
             choices=("auto", "erofs", "tree"))  # fmt: skip
TREE = (
    Flag("erofs-backing", "backing",
         "Devices of the kernel's EROFS: files, or loop devices over them (kernels before 6.12).",
         default="auto", choices=("auto", "file", "loop")),
    Flag("rw", "rw", "Make the tree writable; written files are removed with the mount.", "switch"),
)  # fmt: skip
"""Options by which an image becomes a tree."""

RUN = (
    Flag("bind", "binds", "Show SRC of the host at DST.", "texts", "SRC:DST[:ro]"),
    Flag("env", "env", "Set a variable, or hand on the one set here.", "texts", "NAME[=VALUE]"),
    Flag("workdir", "workdir", "Working directory of the command.  [the image's]", metavar="DIR"),
    Flag("user", "user", "User of the command, by name or number.  [the image's]", metavar="USER[:GROUP]"),
    Flag("entrypoint", "entrypoint", "In place of the image's; '' for none.", metavar="PATH", default=None),
    Flag("hostname", "hostname", "The container's host name.  [the host's]", metavar="NAME"),
    Flag("network", "network", "The host's network, or none.  [host]", default="host", choices=("host", "none")),
    Flag("device", "devices", "Give the container this device.", "texts", "PATH"),
    Flag("memory", "memory", "Most memory of the container.  [no limit]", metavar="SIZE"),
    Flag("cpus", "cpus", "Most processors it may keep busy, such as 1.5.  [no limit]", metavar="N"),
    Flag("pids-limit", "pids_limit", "Most processes and threads in it.  [no limit]", metavar="N"),
    Flag("cgroup-parent", "cgroup_parent", "Its cgroup is made below this one.  [/]", metavar="PATH", default="/"),
    Flag("cap-add", "added", "Give it this capability, or ALL.", "texts", "NAME"),
    Flag("cap-drop", "dropped", "Take this capability from it, or ALL.", "texts", "NAME"),
    Flag("no-new-privileges", "no_new_privileges", "Setuid programs and file capabilities have no effect.", "switch"),
    Flag(
        "seccomp",
        "seccomp",
        "Its system calls: a profile in Docker's form, default, or unconfined.  [default]",
        metavar="FILE",
        default="default",
    ),
    Flag(
        "userns",
        "userns",
        "Its root is this user of the host, auto for one of its own, or host.  [host]",
        metavar="UID",
        default="host",
    ),
    Flag("tty", "tty", "Give the command a terminal.  [when there is one here]", "either", default=None),
    Flag("oci-runtime", "oci_runtime", "runc, crun, or a path.  [whichever is there]", metavar="NAME", default="auto"),
    Flag(
        "startup-cache",
        "startup_cache",
        "Mount compiled files of earlier starts, or keep those of this one: auto, or names such as inductor,triton.",
        metavar="NAMES",
    ),
    Flag(
        "startup-cache-salt", "startup_cache_salt", "Keep these caches apart from those of other jobs.", metavar="TEXT"
    ),
    PLANE,
    CONFIG,
    *RECORDING,
    *TREE,
    Flag(
        "unpack",
        "unpack",
        "Copy the whole image to local disk before the start, as a pull does; for comparisons.",
        "switch",
    ),
)
_OF_HOSTS = ("targets", "requirements", "python")  # of `REQUEST`; containers have their own way
DEPS = (
    Flag("deps", "deps", "A requirements file that pip installs before, once for all starts.", "texts", "FILE"),
    Flag("deps-target", "deps_target", "Install there instead of where the image's Python looks.", metavar="DIR"),
    Flag("deps-python", "deps_python", "The image's interpreter, by name or path.  [python3]", metavar="PATH"),
    *(flag._replace(name=f"deps-{flag.name}", field=f"deps_{flag.field}")
      for flag in REQUEST if flag.field not in _OF_HOSTS),
    Flag("deps-explain", "deps_explain", "Print the components of the key; run and install nothing.", "switch"),
    Flag("deps-wait", "deps_wait", "Run the command when it is published, and not when it is installed.", "switch"),
    Flag("deps-probe", "deps_probe", "A Python program that must run with the snapshot.", metavar="CODE"),
    Flag("deps-bytecode", "deps_bytecode", "Comparison of sources with their bytecode at imports.", default="unchecked",
         choices=("unchecked", "checked")),
    Flag("deps-allow-file", "deps_allowed", "Files that need not belong to a package.", "texts", "PATTERN"),
    Flag("deps-allow-conflicts", "deps_tolerant", "Publish packages that do not fit one another.", "switch"),
    Flag("deps-allow-setuid", "deps_setuid", "Publish programs with setuid, setgid or capabilities.", "switch"),
    Flag("ignore-outside", "deps_outside", "Files outside the target that pip may change.", "texts", "PATTERN"),
)  # fmt: skip
"""Flags for packages that are installed above the image."""

JOB = (
    Flag("job", "job", "Read flags, image and command from this TOML file; FILE.toml as the image does the same.",
         metavar="FILE"),
    Flag("checkpoint", "checkpoints", "Show a directory of a store, and fetch its files while the image comes.",
         "texts", "SOURCE[:/PATH][:ro|:rw]"),
    Flag("checkpoint-warm", "checkpoint_warm", "Files to fetch: all, latest, none, or a pattern.",
         metavar="WHICH", default="all"),
    Flag("checkpoint-share", "checkpoint_share", "Most of the link that they take while the image comes, 0 to 1.",
         metavar="PART", default="0.5"),
    Flag("link-rate", "link_rate", "Rate of the link.  [the rate that the image leaves is measured]", metavar="RATE"),
    Flag("checkpoint-option", "checkpoint_options", "Options of their mounts, as stripefs mount -o has them.", "texts",
         "A,B=C"),
    Flag("events", "events", "Write the events of this start to files in this folder.  [BOOTSEER_EVENTS]",
         metavar="DIR"),
    Flag("collector", "collector", "Copy the events there when the job has ended.  [BOOTSEER_COLLECTOR]",
         metavar="STORE"),
)  # fmt: skip
"""The surroundings of a job, and the file that may describe all of it."""

SECTIONS, WITHOUT = ("store", "daemon", "deps"), "memory"
"""Sections of settings that are flags of `run` besides, and the setting that is not, because its name means the
container's here."""


class CommandLine(NamedTuple):
    """A command line that was read: values of flags by field, settings as flags say them, and the other words. said:
    the fields of flags that it has."""

    values: Mapping[str, Any]
    given: Given
    words: Sequence[str]
    said: frozenset[str] = frozenset()


def read_line(
    arguments: Sequence[str], flags: Sequence[Flag], sections: Sequence[str], without: str = "", *, others: bool = False
) -> CommandLine | None:
    """A line with these flags and those of settings of these sections, but for the one named; None where click is to
    read it. others: as `stripefs.cli.fastpath.read` has it.
    """
    settings = [
        Flag(one.name, one.name, one.help, "either" if one.is_switch else "texts" if one.many else "text")
        for one in IMAGEFS.all
        if one.section in sections and one.name != without
    ]
    line = read(arguments, [*flags, *(flag._replace(field=f"--{flag.name}") for flag in settings)], others=others)
    if line is None:
        return None
    values, words = line
    given = {}
    for flag in settings:
        value = values.pop(f"--{flag.name}", None)
        text = (",".join(value) or None) if isinstance(value, tuple) else value
        if text is not None:
            given[flag.name] = (str(text).lower() if isinstance(text, bool) else text, f"--{flag.name}")
    return CommandLine({flag.field: flag.unset for flag in flags} | values, given, words, frozenset(values))


def recording(workload: str, ready_file: str, no_record: bool) -> Recording:
    """Raises ConfigError for a workload that cannot be a name."""
    if not TAG.fullmatch(workload):
        raise ConfigError(f"--workload {workload!r} is no name of a workload", hint="letters, digits, '.', '_' and '-'")
    return Recording(workload, 0.0, os.path.abspath(ready_file) if ready_file else "", no_record)


def is_job_file(word: str) -> bool:
    """Tells whether this word names a job file, and no image with such a tag."""
    return word.endswith(".toml") and "#" not in word
