"""The smoke test of an installation (`--probe`): a program of the user's, mostly a few imports, that must run with it.

A packed image is tried before anybody can find it: the daemon serves the image as it will serve the snapshot. A child
that is process 1 of a PID namespace mounts it in a mount namespace of its own, over what was installed, which the job
may be using; so nobody else sees it there, and it goes with the child, however this process ends. Where that cannot be
done, the test is of what was installed.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from imagefs import containers
from imagefs.daemon.client import Client
from imagefs.daemon.protocol import Recording
from imagefs.run import namespace
from imagefs.settings import DaemonSettings, TreeOptions
from stripefs.errors import MountError
from stripefs.fuse import kernel
from stripefs.settings import StoreSettings

if TYPE_CHECKING:
    from imagefs.run.container import MountLayer

__all__ = ["Probe", "SmokeTestResult", "probe_failure", "read_only", "try_packed"]

_MS_RDONLY, _MS_BIND, _MS_REMOUNT = 1, 4096, 32


def probe_failure(
    interpreter: str, code: str, target: str, folder: str | None = None, before: Callable[[], None] | None = None
) -> str:
    """Why `interpreter -c code` fails with the packages in `target`, in one line; "" where it does not.

    folder: where it runs, by default the working directory. before: called in the child before it becomes the
    interpreter.
    """
    paths = [target, *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        done = subprocess.run(
            [interpreter, "-c", code],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            preexec_fn=before,
        )
    except OSError as error:  # the interpreter may be one of the files that are tried
        return f"{interpreter} cannot be run: {error.strerror}"
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1] if done.returncode else ""


def read_only(target: str) -> Callable[[], None]:
    """A function that makes `target`, for the caller's process, where it may do that, as when it is mounted: nobody can
    write there."""

    def make() -> None:
        with contextlib.suppress(OSError):  # plain users cannot
            namespace.private_mounts()
            kernel.mount(target, target, "", _MS_BIND, "")
            kernel.mount("", target, "", _MS_BIND | _MS_REMOUNT | _MS_RDONLY, "")

    return make


class Probe(NamedTuple):
    """A smoke test, in values that can be JSON: an interpreter, a program in Python for it, and where that runs.

    settings: fields of `DaemonSettings`. tree: fields of `TreeOptions`.
    """

    interpreter: str
    code: str
    folder: str
    settings: Mapping[str, Any]
    tree: Sequence[Any]


class SmokeTestResult(NamedTuple):
    """The result of a smoke test. failure: in one line, "" for none. unmounted: why it was not of what was packed, ""
    where it was."""

    failure: str
    unmounted: str = ""


def try_packed(probe: Probe, target: str, store: StoreSettings, image: str) -> SmokeTestResult:
    """Try the image of this digest at `target`, where it was installed.

    Raises StripefsError for an image that the daemon cannot serve, and OSError.
    """
    try:
        return SmokeTestResult(_mounted(probe, target, store, image))
    except MountError as error:
        failure = probe_failure(probe.interpreter, probe.code, target, probe.folder, read_only(target))
        return SmokeTestResult(failure, str(error))


def _mounted(probe: Probe, target: str, store: StoreSettings, image: str) -> str:
    """The reason for which it fails, "" where it does not. Raises MountError where it cannot be mounted."""
    if os.geteuid() != 0:
        raise MountError("only root can mount it for the probe alone")
    client, tree = Client(DaemonSettings(**probe.settings)), TreeOptions(*probe.tree)
    with containers.attached(client, store, image, Recording(off=True), tree) as found, found.layer() as layer:
        try:
            with namespace.child(lambda told: _in_child(probe, target, layer, told)) as (child, report):
                told = b"".join(iter(lambda: os.read(report, 1 << 16), b""))
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        except OSError as error:
            raise _unmounted(target, error) from error
    if not told:
        return f"the process that mounts for it ended with status {status}"
    failure, unmounted, hint = json.loads(told)
    if unmounted:
        raise MountError(unmounted, hint=hint)
    return str(failure)


def _in_child(probe: Probe, target: str, layer: MountLayer, told: int) -> None:
    failure = unmounted = hint = ""
    try:
        _mount(target, layer)
        failure = probe_failure(probe.interpreter, probe.code, target, probe.folder)
    except MountError as error:
        unmounted, hint = error.message, error.hint
    with open(told, "w", closefd=False) as file:
        json.dump([failure, unmounted, hint], file)


def _mount(target: str, layer: MountLayer) -> None:
    """For this process alone. Raises MountError."""
    try:
        namespace.private_mounts()
        layer(target)
    except OSError as error:
        raise _unmounted(target, error) from error


def _unmounted(target: str, error: OSError) -> MountError:
    return MountError(f"{target} cannot be mounted for the probe alone: {error.strerror}")
