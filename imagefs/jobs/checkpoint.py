"""Checkpoints of a job: a store's directory that its container shows, whose files come to local disk beside the image.

    imagefs run --> stripefs mount, in the runtime folder ---> bind in the container
                --> warming process (`imagefs.jobs.warming`)

Each run has mounts of its own, which share a cache folder with those of other runs of this host. They are made while
the daemon attaches the image, and are waited for before the container is made. Both processes end with `imagefs run`,
however that ends. Where a mount is left because its process was killed too, the sweep of the next run takes it away
(`imagefs.run.bundle`).
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from imagefs.errors import RunError
from imagefs.run.bundle import RunFolder
from imagefs.run.namespace import end_with_parent
from imagefs.run.options import Bind
from imagefs.settings import DaemonSettings
from stripefs.cli.mounting import expand, prepare
from stripefs.cli.output import tell
from stripefs.errors import ConfigError, StripefsError
from stripefs.fuse.control import make_directory
from stripefs.fuse.daemonize import BackgroundMount
from stripefs.fuse.ipc import store_mount_spec
from stripefs.options import Given
from stripefs.settings import Settings, redact
from stripefs.store.url import refuse_half_url

__all__ = ["Checkpoint", "Shown", "Warmth", "parse_share", "shown"]

TARGET = "/checkpoint"
"""The directory that shows a checkpoint which names no place."""

_LEAVES_WITHIN = 30.0
"""Seconds for which the end of a mount's process is waited for: what was written is on its way to the store."""


class Checkpoint(NamedTuple):
    """source: a URL, or a directory. target: where the container shows it."""

    source: str
    target: str
    writable: bool = False

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """SOURCE[:/PATH][:ro|:rw]. Raises ConfigError."""
        rest, _, mode = text.rpartition(":")
        source = rest if mode in ("ro", "rw") else text
        try:
            refuse_half_url(source)
        except ConfigError as error:
            raise ConfigError(f"--checkpoint {error.message}", hint=error.hint) from None
        before, colon, path = source.rpartition(":/")
        target = TARGET
        if colon and not path.startswith("/"):  # else it is that of a URL
            source, target = before, f"/{path}"
        if not source or ".." in target.split("/") or not target.strip("/"):
            raise ConfigError(f"--checkpoint {text} is not SOURCE[:/PATH][:ro|:rw]")
        return cls(source, posixpath.normpath(target), mode == "rw" and source != text)


class Warmth(NamedTuple):
    """Settings of the warming of checkpoints. files: `all`, `latest`, `none`, or a pattern of paths. share: of the
    link, while the image comes. link_rate: of the link in bytes a second, 0 where it is to be measured."""

    files: str = "all"
    share: float = 0.5
    link_rate: int = 0


def parse_share(text: str) -> float:
    """A part of the link, from 0 to 1. Raises ConfigError."""
    with contextlib.suppress(ValueError):
        if 0 <= (found := float(text)) <= 1:
            return found
    raise ConfigError(f"--checkpoint-share {text} is not a number from 0 to 1")


class Shown(NamedTuple):
    """Checkpoints that are being mounted. binds: for the container. wait: comes back when all of them answer, at once
    when they did before; raises RunError."""

    binds: Sequence[Bind]
    wait: Callable[[], None]


@contextlib.contextmanager
def shown(
    checkpoints: Sequence[Checkpoint],
    warmth: Warmth,
    daemon: DaemonSettings,
    given: Given,
    words: Sequence[str] = (),
    taken: Sequence[str] = (),
) -> Iterator[Shown]:
    """Begin to mount and to warm checkpoints; the mounts end with the block.

    given: settings of the store from flags. words: as `stripefs mount -o` has them. taken: where the container shows
    something else. Raises ConfigError, RunError.
    """
    targets = [one.target for one in checkpoints]
    if twice := next((one for one in targets if [*targets, *taken].count(one) > 1), ""):
        raise ConfigError(
            f"--checkpoint: something else is to be shown at {twice} too", hint="SOURCE:/PATH names another place"
        )
    with contextlib.ExitStack() as held:
        make_directory(Path(daemon.runtime))
        try:
            folder = held.enter_context(RunFolder(os.path.join(daemon.runtime, "imagefs")))
        except OSError as error:
            raise RunError(f"{daemon.runtime}: {error.strerror}") from error
        binds: list[Bind] = []
        begun: list[tuple[str, BackgroundMount, IO[bytes] | None]] = []
        for number, one in enumerate(checkpoints):
            place = folder.layer(number)
            os.makedirs(place, 0o700)
            settings = _settings(one, place, daemon, given, words)
            try:
                mount = BackgroundMount(store_mount_spec(settings)._replace(owner=os.getpid()))
            except StripefsError as error:
                raise _failed(one.source, error) from error
            held.callback(_end, mount, place)
            warming = None
            if warmth.files != "none":
                process = _warm(settings, warmth, daemon)
                held.callback(_kill, process, one.source)
                warming = process.stdin
            binds.append(Bind(place, one.target, one.writable, made=True))
            begun.append((one.source, mount, warming))

        def wait() -> None:
            while begun:
                source, mount, warming = begun.pop(0)
                try:
                    mount.wait()
                except StripefsError as error:
                    raise _failed(source, error) from error
                if warming is not None:  # which tells of trouble now: that of the store was the mount's to tell
                    warming.close()

        yield Shown(binds, wait)


def _settings(
    checkpoint: Checkpoint, place: str, daemon: DaemonSettings, given: Given, words: Sequence[str]
) -> Settings:
    mode = ("true" if checkpoint.writable else "false", "--checkpoint")
    try:
        settings = prepare(checkpoint.source, place, expand(list(words)), {**given, "rw": mode})
    except ConfigError as error:
        if not error.message.startswith("-o "):
            raise
        raise ConfigError(f"--checkpoint-option {error.message.removeprefix('-o ')}", hint=error.hint) from None
    if not settings.cache.directory:
        cache = os.path.join(os.path.abspath(daemon.cache), "checkpoints")
        settings = settings._replace(cache=settings.cache._replace(directory=cache))
    return settings


def _failed(source: str, error: StripefsError) -> RunError:
    return RunError(f"--checkpoint {redact(source)}: {error.message}", hint=error.hint)


def _warm(settings: Settings, warmth: Warmth, daemon: DaemonSettings) -> subprocess.Popen[bytes]:
    request = {
        "settings": settings.to_json(),
        **warmth._asdict(),
        "daemon": daemon.to_json(),
        "owner": os.getpid(),
    }
    program, run = [sys.executable, "-P", "-m", "imagefs.jobs.warming"], os.pidfd_open(os.getpid())
    process = subprocess.Popen(
        program, stdin=subprocess.PIPE, start_new_session=True, preexec_fn=lambda: end_with_parent(run)
    )
    os.close(run)
    assert process.stdin is not None
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    return process


def _kill(process: subprocess.Popen[bytes], source: str) -> None:
    if (process.poll() or 0) < 0:  # it was killed, as by a machine that is out of memory
        tell(f"--checkpoint {redact(source)} is not warmed: signal {-process.returncode}", program="imagefs")
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _end(mount: BackgroundMount, place: str) -> None:
    """Unmount what is there, or have a mount that is still being made given up; see its process off."""
    from stripefs.cli.mounting import mounted_at
    from stripefs.fuse.mounting import unmount

    if mount.process.poll() is None:
        mount.process.terminate()  # unmounts, also what has not answered yet
    try:
        mount.process.wait(_LEAVES_WITHIN)
    except subprocess.TimeoutExpired:
        if mounted_at(place) is not None:
            unmount(place, lazy=True)
    mount.forget()
