"""The fast path of `imagefs run`: a line that is written plainly is begun without click, which takes long to load."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from imagefs.cli.flags import DEPS, JOB, RUN, SECTIONS, WITHOUT, is_job_file, read_line, recording
from imagefs.config import Settings, resolve
from imagefs.daemon.client import Client
from imagefs.daemon.protocol import Recording
from imagefs.reference import parse_reference
from stripefs.errors import ConfigError
from stripefs.options import Given

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from typing import Any

    from imagefs.containers import JobRunner
    from imagefs.run.options import Bind, RunOptions

__all__ = ["begin_run", "plain_run", "start_run"]


def plain_run(arguments: Sequence[str]) -> Callable[[], int] | None:
    """The body of `imagefs run` with these arguments, None where click is to read them."""
    line = read_line(arguments, (*RUN, *DEPS, *JOB), SECTIONS, WITHOUT)
    if line is None or not (line.words or line.values["job"]):
        return None
    return lambda: begin_run(line.words, line.values, line.given, line.said)


def begin_run(words: Sequence[str], values: Mapping[str, Any], given: Given, said: frozenset[str]) -> int:
    """Run a container until it ends; its exit status. Raises StripefsError.

    words: the image and its command. values: of the flags in `RUN`, `DEPS` and `JOB`, by field. given: settings, as
    flags say them. said: fields of the flags that were given.
    """
    if (
        any(values[flag.field] != flag.unset for flag in JOB)
        or os.environ.get("BOOTSEER_EVENTS")
        or (words and is_job_file(words[0]))
    ):
        from imagefs.cli.job import begin_job

        return begin_job(words, values, given, said, start_run)
    return start_run(words, values, given)


def start_run(
    words: Sequence[str],
    values: Mapping[str, Any],
    given: Given,
    *,
    binds: Sequence[Bind] = (),
    env: Sequence[str] = (),
    prepared: Callable[[], None] | None = None,
) -> int:
    """As `begin_run`, in the surroundings of a job: with these binds and variables besides. prepared: as `RunOptions`
    has it."""
    from imagefs.run.options import Bind, ResourceLimits, RunOptions, parse_cgroup, parse_userns
    from imagefs.run.privileges import parse_capabilities
    from imagefs.settings import TreeOptions
    from imagefs.startup.emission import environment, events

    if not words:
        raise ConfigError("no image is named", hint="imagefs run STORE#TAG -- COMMAND")
    image, *command = words
    reference = parse_reference(image)
    settings = resolve(given, url=reference.store, config=values["config"])
    entrypoint = values["entrypoint"]
    options = RunOptions(
        command=tuple(command),
        entrypoint=None if entrypoint is None else ((entrypoint,) if entrypoint else ()),
        writable=values["rw"],
        binds=[*(Bind.parse(text) for text in values["binds"]), *binds],
        env=[*environment(os.environ), *env, *values["env"]],
        workdir=values["workdir"],
        user=values["user"],
        hostname=values["hostname"],
        network=values["network"],
        devices=values["devices"],
        terminal=values["tty"],
        runtime=values["oci_runtime"],
        limits=ResourceLimits.parse(values["memory"], values["cpus"], values["pids_limit"]),
        cgroup_parent=parse_cgroup(values["cgroup_parent"]),
        added=parse_capabilities("--cap-add", values["added"]),
        dropped=parse_capabilities("--cap-drop", values["dropped"]),
        seccomp=values["seccomp"],
        no_new_privileges=values["no_new_privileges"],
        first_id=parse_userns(values["userns"]),
        prepared=prepared,
    )
    client = Client(settings.daemon, settings.asked)
    tree = TreeOptions(plane=values["plane"], backing=values["backing"], unpack=values["unpack"])
    record = recording(values["workload"], values["ready_file"], values["no_record"])
    job = _with_caches(settings, options, record, values) if values["startup_cache"] else None
    with events().called():
        if any(values[flag.field] != flag.unset for flag in DEPS):
            from imagefs.cli.deps.container import begin_container

            return begin_container(client, settings, reference.name, options, tree, record, values, job)
        from imagefs import containers

        return containers.run(client, settings.store, reference.name, options, tree, record, job)


def _with_caches(settings: Settings, options: RunOptions, record: Recording, values: Mapping[str, Any]) -> JobRunner:
    """Raises RunError for what cannot be."""
    from functools import partial

    from imagefs.startup_cache.start import runner
    from stripefs.cli.output import tell

    names, salt = values["startup_cache"], values["startup_cache_salt"]
    return runner(names, salt, settings.snapshots, options, record, partial(tell, program="imagefs run"))
