"""The events of a job's start: their folder, the names of the start, and what its container needs to add its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, MutableMapping

from imagefs.errors import RunError
from imagefs.run.options import Bind
from stripefs import startup_events
from stripefs.startup_events import (
    ENV_ATTEMPT,
    ENV_FOLDER,
    ENV_JOB,
    ENV_NODE,
    ENV_RANK,
    ENV_RUN,
    identity,
)

__all__ = ["COLLECTOR", "FOLDER", "PROGRAM", "collected", "recorded"]

COLLECTOR = "BOOTSEER_COLLECTOR"
"""Names the collector folder."""

FOLDER, PROGRAM = "/run/imagefs/events", "/run/imagefs/startup_events.py"
"""Where a container has the folder of events, and the program that writes them in any image with Python."""


_COLLECT = "import sys; from imagefs.cli.main import run; sys.exit(run())"


@contextlib.contextmanager
def collected(folder: str, url: str) -> Iterator[None]:
    """Copy the events in `folder` to the collector folder at `url` when the block ends. What goes wrong is told by the
    program that copies and harms no job."""
    try:
        yield
    finally:
        command = [sys.executable, "-P", "-c", _COLLECT, "startup", "collect", "--quiet", os.path.abspath(folder), url]
        with contextlib.suppress(OSError):  # the machine is out of processes
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)


@contextlib.contextmanager
def recorded(folder: str, job: str, environ: MutableMapping[str, str]) -> Iterator[tuple[list[Bind], list[str]]]:
    """Have the programs of this start write their events to `folder`, which is made where it is missing: the variables
    of `environ` say so until the block ends. Answers the binds of a container, and its variables beside those that name
    the start. Raises RunError.

    job: the job's name where nothing else names it. A run that nothing names gets a name of its own.
    """
    folder = os.path.abspath(folder)
    try:
        os.makedirs(folder)
        os.chmod(folder, 0o1777)  # noqa: S103  the container's users are others
    except FileExistsError:
        if not os.path.isdir(folder):
            raise RunError(f"--events {folder} is no directory") from None
    except OSError as error:
        raise RunError(f"--events {folder} cannot be made: {error.strerror}") from error
    who = identity(environ)
    named = {
        ENV_FOLDER: folder,
        ENV_JOB: who.job or job,
        ENV_RUN: who.run or f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(3)}",
        ENV_ATTEMPT: str(who.attempt),
        ENV_NODE: who.node,
        ENV_RANK: "" if who.rank is None else str(who.rank),
    }
    before = {name: environ.get(name) for name in named}
    environ.update({name: text for name, text in named.items() if text})
    binds = [Bind(folder, FOLDER, made=True), Bind(startup_events.__file__, PROGRAM, writable=False)]
    try:
        yield binds, [f"{ENV_FOLDER}={FOLDER}"]
    finally:
        for name, text in before.items():
            if text is None:
                environ.pop(name, None)
            else:
                environ[name] = text
