"""The flags of commands that install, by which a user says what decides the result; read with click or without."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stripefs.cli.fastpath import Flag
from stripefs.errors import ConfigError
from stripefs.osutil import umask

if TYPE_CHECKING:
    from imagefs.config import Settings
    from imagefs.deps.lock_cache import LockCache, RunResolver
    from imagefs.deps.request import Request

__all__ = ["REQUEST", "locks_of", "request_of"]

REQUEST = (
    Flag("target", "targets", "The directory that is installed into.", "texts", "DIR"),
    Flag("requirements", "requirements", "A requirements file that the command reads by itself.", "texts", "FILE"),
    Flag("input", "inputs", "A file or directory that decides what is installed.", "texts", "PATH"),
    Flag("env", "env", "A variable that decides what is installed.", "texts", "NAME"),
    Flag("python", "python", "The interpreter that installs and imports.  [the command's, else python3]",
         metavar="PATH"),
    Flag("cuda", "cuda", "The version of CUDA that it is for.", metavar="VERSION"),
    Flag("driver", "driver", "The version of the driver that it is for.", metavar="VERSION"),
    Flag("cpu-level", "cpu_level", "The least processor of a mixed fleet, such as x86-64-v2.  [this one's]",
         metavar="LEVEL"),
    Flag("namespace", "namespace", "Keep apart from those of other namespaces.", metavar="NAME"),
    Flag("salt", "salt", "Any text: with another one it is another snapshot.", metavar="TEXT"),
    Flag("epoch", "epoch", "Take what may change for unchanged as long as this text is the same.", metavar="TEXT"),
    Flag("strict", "strict", "Refuse what is not pinned, and do not resolve it.", "switch"),
    Flag("allow-unpinned", "allow_unpinned", "Take what may change for unchanged for good.", "switch"),
)  # fmt: skip


def request_of(values: Mapping[str, Any], command: Sequence[str]) -> Request:
    """What these values of `REQUEST`, by field, and this command ask for in the working directory, by this user.

    Raises ConfigError.
    """
    from imagefs.deps.request import Request, Target  # `imagefs run` reads the flags, and seldom asks

    if "" in values["targets"]:
        raise ConfigError("--target names nothing", hint="is the variable set that it comes from?")
    targets = [Target(os.path.realpath(path), os.geteuid(), os.getegid(), umask()) for path in values["targets"]]
    others = {flag.field: values[flag.field] for flag in REQUEST if flag.field != "targets"}
    return Request(targets, tuple(command), os.getcwd(), **others)


def locks_of(settings: Settings, run: RunResolver | None = None, *, make: bool = True) -> LockCache:
    """What resolves requirements with these settings, and keeps the answers in the cache and in the named store.

    run: the resolver, that of this host by default. make: whether a store that is not there yet is made.
    """
    from imagefs.deps.lock_cache import LockCache

    store = settings.store if settings.deps.store else None
    return LockCache(settings.daemon.cache, store, settings.deps.resolve_age, run, make=make)
