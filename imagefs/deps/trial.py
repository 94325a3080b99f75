"""The trial of an installation: a program of the user's, mostly a few imports, that must run with it (`--probe`)."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable

from imagefs.run import namespace
from stripefs.fuse import kernel

__all__ = ["failure", "read_only"]

_MS_RDONLY, _MS_BIND, _MS_REMOUNT = 1, 4096, 32


def failure(
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
    """What makes `target` for the caller's process, where it may do that, as it will be when it is mounted: nobody can
    write there."""

    def make() -> None:
        with contextlib.suppress(OSError):  # plain users cannot
            namespace.private_mounts()
            kernel.mount(target, target, "", _MS_BIND, "")
            kernel.mount("", target, "", _MS_BIND | _MS_REMOUNT | _MS_RDONLY, "")

    return make
