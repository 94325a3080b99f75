"""`imagefs run` with surroundings: a job file, checkpoints, events."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from imagefs.cli.flags import DEPS, JOB, RUN, SECTIONS, is_job_file
from imagefs.config import IMAGEFS, resolve
from imagefs.errors import RunError
from imagefs.jobs.job import JobFile, read_job_file
from imagefs.run.options import Bind
from imagefs.startup.emission import events
from stripefs.cli.output import tell
from stripefs.errors import ConfigError
from stripefs.options import Given
from stripefs.startup_events import ENV_FOLDER
from stripefs.units import parse_rate

__all__ = ["FLAGS", "begin_job", "read_job"]

FLAGS = (*RUN, *DEPS, *JOB)


class ContainerStart(Protocol):
    """`imagefs.cli.fastpath.start_run`."""

    def __call__(
        self,
        words: Sequence[str],
        values: Mapping[str, Any],
        given: Given,
        *,
        binds: Sequence[Bind],
        env: Sequence[str],
        prepared: Callable[[], None] | None,
    ) -> int: ...


def begin_job(
    words: Sequence[str], values: Mapping[str, Any], given: Given, said: Collection[str], start: ContainerStart
) -> int:
    """As `imagefs.cli.fastpath.begin_run`, which has the container begin by `start`."""
    path = values["job"]
    if not path and words and is_job_file(words[0]):
        path, *words = words
    if not path:
        return _begin(words, values, given, "", start)
    file = read_job(path)
    names = {flag.name for flag in FLAGS if flag.field in said}
    with file.locating_errors(names):
        words, values, given = file.under(words, values, given, said)
        return _begin(words, values, given, os.path.splitext(os.path.basename(path))[0], start)


def read_job(path: str) -> JobFile:
    """A job file. Raises ConfigError."""
    flags = [flag for flag in FLAGS if flag.name != "job"]
    return read_job_file(path, flags, IMAGEFS, SECTIONS)


def _begin(words: Sequence[str], values: Mapping[str, Any], given: Given, job: str, start: ContainerStart) -> int:
    binds: list[Bind] = []
    env: Sequence[str] = ()
    prepared: Callable[[], None] | None = None
    with contextlib.ExitStack() as held:
        if folder := values["events"] or os.environ.get(ENV_FOLDER, ""):
            from imagefs.jobs.job import COLLECTOR, collected, recorded

            if url := values["collector"] or os.environ.get(COLLECTOR, ""):
                held.enter_context(collected(folder, url))
            name = job or (words[0].rpartition("#")[2] if words else "")
            try:
                of_events, env = held.enter_context(recorded(folder, name, os.environ))
                binds += of_events
                held.callback(_tell_lost, folder)
            except RunError as error:
                if values["events"]:
                    raise RunError(f"--events: {error.message}") from error
                tell(f"{ENV_FOLDER}: {error.message}: the job starts without events", program="imagefs run")
        elif values["collector"]:
            raise ConfigError("--collector names a place for events, and there are none", hint="--events DIR")
        if values["checkpoints"]:
            from imagefs.jobs.checkpoint import Checkpoint, Warmth, parse_share, shown

            checkpoints = [Checkpoint.parse(text) for text in values["checkpoints"]]
            share = parse_share(values["checkpoint_share"])
            warmth = Warmth(values["checkpoint_warm"], share, _rate(values["link_rate"]))
            daemon = resolve(given, config=values["config"]).daemon
            store = {one.name: given[one.name] for one in IMAGEFS.all if one.section == "store" and one.name in given}
            store.pop("mirror", None)
            taken = [bind.target for bind in (*map(Bind.parse, values["binds"]), *binds)]
            found = held.enter_context(shown(checkpoints, warmth, daemon, store, values["checkpoint_options"], taken))
            binds, prepared = [*binds, *found.binds], found.wait
        return start(words, values, given, binds=binds, env=env, prepared=prepared)


def _tell_lost(folder: str) -> None:
    if problem := events().problem:
        tell(f"events are lost: {folder}: {problem}", program="imagefs run")


def _rate(text: str) -> int:
    try:
        return int(parse_rate(text)) if text else 0
    except ConfigError as error:
        raise ConfigError(f"--link-rate: {error.message}", hint=error.hint) from None
