"""Programs of ours in a container of the image, before the job's own: for its Python, and for the user's probe.

Their streams are not the job's, they run as root, and have nothing of the host but what they are given.

The facts of the Python of an image are asked in a container of it once, and kept:

    CACHE/deps/interpreters/HASH     what it printed

HASH is that of the image, of the machine, of the PATH on which the interpreter is looked for, and of what it is asked.
The tree of an image never changes, so neither does the answer.

The probe (`--deps-probe`) runs in a container of the same image, with what was installed above that.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from imagefs.containers import AttachedImage
from imagefs.deps import facts, publications
from imagefs.deps.key import Facts
from imagefs.errors import LayerFailed
from imagefs.run.container import MountLayer
from imagefs.run.options import Bind, RunOptions
from stripefs.errors import ConfigError, StripefsError
from stripefs.fuse import kernel
from stripefs.osutil import signals_for_main

__all__ = [
    "DOWNLOADS",
    "Interpreter",
    "bind_layer",
    "env_words",
    "helper_options",
    "host_binds",
    "outermost",
    "output_of",
    "probe_failure",
    "probe_options",
    "streams",
    "user_output",
]

DOWNLOADS = "/run/imagefs-downloads"
"""The path in containers of the cache that the resolver and the installer share."""

_MS_BIND = 4096
_PIECE = 1 << 16  # bytes, which is what a pipe holds


def bind_layer(folder: str) -> MountLayer:
    """A directory of the host as a tree above an image."""
    return lambda target: kernel.mount(folder, target, "", _MS_BIND, "")


def helper_options(options: RunOptions, command: Sequence[str]) -> RunOptions:
    """A container for `command` that is otherwise like the job's: its variables, network and limits."""
    return options._replace(
        command=tuple(command),
        entrypoint=(),
        user="0",
        binds=(),
        workdir="/",
        devices=(),
        terminal=False,
        writable=False,
        prepared=None,
    )


def output_of(run: Callable[[RunOptions], int], options: RunOptions) -> str:
    """The output of a command, with a standard input that stays silent. Raises ConfigError and RunError, and
    KeyboardInterrupt or SystemExit for a signal that came meanwhile."""
    reader, writer = os.pipe()
    try:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            with streams(reader, out.fileno(), errors.fileno()):
                status = run(options._replace(aside=True))
            if status - 128 == signal.SIGINT:
                raise KeyboardInterrupt
            if status - 128 in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                raise SystemExit(status)
            out.seek(0)
            if status == 0:
                return out.read().decode(errors="replace")
            errors.seek(0)
            why = (errors.read().decode(errors="replace").strip().splitlines() or [f"exit status {status}"])[-1]
            raise ConfigError(f"{options.command[0]} of the image failed: {why}")
    finally:
        os.close(reader)
        os.close(writer)


@contextlib.contextmanager
def user_output() -> Iterator[int]:
    """A descriptor for output that people are to see on standard error. Where nobody reads that, or the disk of a log
    is full, the output is lost, and a program does not fail by it."""
    if os.isatty(2):
        yield 2
        return
    reader, writer = os.pipe()
    errors = os.dup(2)
    thread = threading.Thread(target=_forward, args=(reader, errors), name="output", daemon=True)
    with signals_for_main():
        thread.start()
    try:
        yield writer
    finally:
        os.close(writer)
        thread.join()
        os.close(reader)
        os.close(errors)


def _forward(reader: int, errors: int) -> None:
    while data := os.read(reader, _PIECE):
        left = memoryview(data)
        with contextlib.suppress(OSError):
            while left:
                left = left[os.write(errors, left) :]


@contextlib.contextmanager
def streams(*wanted: int) -> Iterator[None]:
    """Let containers that are run in the block have these for standard input, output and error."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = [os.dup(number) for number in range(len(wanted))]
    copies = [os.dup(number) for number in wanted]  # one of these may be among those that are replaced
    try:
        for number, copy in enumerate(copies):
            os.dup2(copy, number)
        yield
    finally:
        for number, old in enumerate(before):
            os.dup2(old, number)
        for descriptor in (*before, *copies):
            os.close(descriptor)


def env_words(environ: Mapping[str, str]) -> list[str]:
    """Variables as containers get them."""
    return [f"{name}={value}" for name, value in environ.items()]


def outermost(paths: Sequence[str]) -> list[str]:
    """The existing paths that are not inside of another one."""
    found: list[str] = []
    for path in sorted(set(paths)):
        if os.path.exists(path) and not any(path.startswith(f"{one}/") for one in found):
            found.append(path)
    return found


def host_binds(paths: Sequence[str], seen: Callable[[str], str] = lambda _path: "") -> list[Bind]:
    """Paths of the host at their own paths in a container. seen: what stands there for a directory, "" for itself; one
    of which more than itself is needed is there itself."""
    found = []
    needed = {*paths, os.getcwd()}
    for path in outermost(paths):
        alone = not any(other.startswith(f"{path}/") for other in needed)
        found.append(Bind((alone and seen(path)) or path, path, os.path.isdir(path)))
    return found


class Interpreter:
    """One of an image, in containers like the job's.

    search: the PATH that containers have. python: its name or path. cpu_level: the one that the user wants, "" for the
    processor's. asked: HASH. told: what it printed, once that is known.
    """

    def __init__(self, image: AttachedImage, options: RunOptions, search: str, python: str, cpu_level: str) -> None:
        self._image = image
        self._options = options
        self._command = facts.inside_command(python)
        self._level = cpu_level
        name = json.dumps([image.attached.base, os.uname().machine, search, self._command])
        self.asked = hashlib.sha256(name.encode()).hexdigest()
        self.told = ""
        self._kept = Path(image.client.settings.cache, "deps/interpreters", self.asked)

    def kept(self) -> Facts | None:
        """The facts of an installation for it, as this host got them earlier; None where it has none."""
        try:
            return self.take(self._kept.read_text())
        except (OSError, ValueError, ConfigError):
            return None

    def take(self, told: str) -> Facts:
        """The facts, from what it printed. Raises ConfigError."""
        found = facts.read_inside(told, self._level)
        self.told = told
        return found

    def ask(self) -> Facts:
        """The facts, as it tells them in a container. Raises ConfigError, RunError and OSError."""
        options = helper_options(self._options, self._command)._replace(network="none")
        found = self.take(output_of(self._image.run, options))
        publications.keep_file(self._kept, self.told)
        return found


def probe_options(options: RunOptions, python: str, code: str, targets: Sequence[str]) -> RunOptions:
    """A container like the job's, for `python -c code` with the packages of these targets besides."""
    found = helper_options(options, [python, "-c", code])
    return found._replace(env=[*found.env, *(f"PYTHONPATH={target}" for target in targets)])


def probe_failure(image: AttachedImage, options: RunOptions, layer: MountLayer) -> str:
    """The reason for which it fails with this above the image, in one line; "" where it does not.

    Raises LayerFailed where the one or the other cannot be mounted.
    """
    try:
        output_of(lambda wanted: image.run(wanted, [layer]), options)
    except LayerFailed:
        raise
    except (StripefsError, OSError) as error:
        return str(error)
    return ""
