"""Mounting in the background: start the supervisor in a session of its own, and come back when its mount answers.

The child is `python -P -m stripefs.fuse.daemonize STATUS [LOCK]`. It reads the spec from standard input, writes a line
of JSON to the descriptor STATUS when it is ready or has failed, and logs to a file, which also gets its standard error.
LOCK is a locked descriptor of whoever starts it, which the child lets go when it is ready or ends: so a starter that is
killed meanwhile leaves nothing half started that the next one could meet. A mount started under a lock is for others
too, who may use it already, and stays when its starter has ended; a mount that one user asked for does not.
A log that nobody named goes with a mount that ended well, and stays for whoever wants to know why one did not.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from stripefs.errors import MountError, StripefsError
from stripefs.fuse.ipc import MountSpec

__all__ = ["BackgroundMount", "start"]


def start(spec: MountSpec, *, lock: int = -1) -> int:
    """Mount and leave a supervisor behind. 0 when the mount answers; raises what kept it from that.

    `lock`, a descriptor that holds a lock of flock(2), stays locked until the child is ready or has ended.
    """
    mount = BackgroundMount(spec, lock)
    try:
        mount.wait()
    finally:
        mount.forget()
    return 0


class BackgroundMount:
    """A mount that a child makes. Its starter does other things and then calls `wait`. Raises MountError.

    process: the child. A caller that need not know how it ends calls `forget`.
    """

    def __init__(self, spec: MountSpec, lock: int = -1) -> None:
        self._log = log = spec.mount.log_file or str(_usual_log(spec))
        self._known = os.path.exists(log)
        try:
            output = open(log, "ab")  # noqa: SIM115  closed below
        except OSError as error:
            raise MountError(
                f"log file {log} cannot be written: {error.strerror}", hint="choose one by --log-file"
            ) from error
        self._answer, theirs = os.pipe()
        inherited = [theirs] if lock < 0 else [theirs, lock]
        with output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "stripefs.fuse.daemonize", *map(str, inherited)],
                pass_fds=inherited,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        os.close(theirs)
        assert self.process.stdin is not None
        with self.process.stdin:
            self.process.stdin.write(spec.logging_to(os.path.abspath(log)).to_json().encode())

    def wait(self) -> None:
        """Come back when the mount answers; once. Raises what kept it from that."""
        from stripefs.fuse.ipc import rebuild_error

        child, log = self.process, self._log
        with os.fdopen(self._answer) as answer:
            self._answer = -1
            try:
                line = answer.readline()
            except KeyboardInterrupt:
                child.send_signal(signal.SIGTERM)
                raise
        if not line:
            raise MountError(f"the mount's process ended with status {child.wait()} and no word", hint=f"see {log}")
        message = json.loads(line)
        if message["op"] == "failed":
            child.wait()
            if not self._known and not os.path.getsize(log):
                os.unlink(log)
            raise rebuild_error(message)

    def forget(self) -> None:
        """Leave the child alone: it is init's when we end. One that nobody waited for ends by itself."""
        if self._answer >= 0:
            os.close(self._answer)
            self._answer = -1
        self.process.returncode = self.process.returncode or 0  # else there is a warning when we end


def _usual_log(spec: MountSpec) -> Path:
    from stripefs.fuse.control import log_file

    return log_file(spec.resolved, Path(spec.directory) if spec.directory else None, spec.name)


def main() -> None:
    """The child's program."""
    from stripefs import logs
    from stripefs.fuse.control import find_mounts
    from stripefs.fuse.ipc import describe_error
    from stripefs.fuse.supervisor import serve

    status, *locks = map(int, sys.argv[1:])
    shared = bool(locks)
    for descriptor in (status, *locks):
        os.set_inheritable(descriptor, False)

    def report(message: dict[str, Any]) -> None:
        nonlocal status
        while message["op"] == "ready" and locks:
            os.close(locks.pop())
        if status >= 0:
            pipe, status = status, -1
            try:
                os.write(pipe, json.dumps(message).encode() + b"\n")
            except BrokenPipeError:
                if not shared:
                    raise MountError("the process that asked for this mount has ended") from None
            finally:
                os.close(pipe)

    try:
        spec = MountSpec.from_json(sys.stdin.read())
        log, mountpoint = spec.mount.log_file, spec.resolved
        logs.configure(spec.mount.log_format, spec.mount.log_level, log, spec.command)
        code = serve(spec, ready=lambda: report({"op": "ready"}))
        # A newer mount at the same place writes to the same file.
        others = find_mounts(Path(spec.directory) if spec.directory else None)
        if code == 0 and log == str(_usual_log(spec)) and all(one.mountpoint != mountpoint for one in others):
            os.unlink(log)
    except StripefsError as error:
        with contextlib.suppress(MountError):
            report({"op": "failed", **describe_error(error)})
        code = error.exit_code
    sys.exit(code)


if __name__ == "__main__":
    main()
