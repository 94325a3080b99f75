"""Mounting in the background: start the supervisor in a session of its own, and come back when its mount answers.

The child is `python -P -m stripefs.mount.daemon STATUS`. It reads the settings from standard input, writes one line of
JSON to the descriptor STATUS when it is ready or has failed, and logs to a file, which also gets its standard error.
A log that nobody named goes with a mount that ended well, and stays for whoever wants to know why one did not.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys

from stripefs.errors import MountError, StripefsError
from stripefs.settings import Settings

__all__ = ["start"]


def start(settings: Settings) -> int:
    """Mount and leave a supervisor behind. 0 when the mount answers; raises what kept it from that."""
    from stripefs.mount.channel import rebuild_error
    from stripefs.mount.control import log_file

    mount = settings.mount
    log = mount.log_file or str(log_file(os.path.realpath(mount.mountpoint)))
    known = os.path.exists(log)
    settings = dataclasses.replace(settings, mount=dataclasses.replace(mount, log_file=os.path.abspath(log)))
    try:
        output = open(log, "ab")  # noqa: SIM115  closed below, with the pipe
    except OSError as error:
        raise MountError(
            f"log file {log} cannot be written: {error.strerror}", hint="choose one by --log-file"
        ) from error
    ours, theirs = os.pipe()
    with output, os.fdopen(ours) as answer:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "stripefs.mount.daemon", str(theirs)],
            pass_fds=(theirs,),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        os.close(theirs)
        assert child.stdin is not None
        with child.stdin:
            child.stdin.write(settings.to_json().encode())
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
        if not known and not os.path.getsize(log):
            os.unlink(log)
        raise rebuild_error(message)
    child.returncode = 0  # it lives on, and is init's from now on: no warning about that when we end
    return 0


def main() -> None:
    """The child's program."""
    from stripefs import logs
    from stripefs.mount.channel import describe_error
    from stripefs.mount.control import find_mounts, log_file
    from stripefs.mount.supervisor import serve

    status = int(sys.argv[1])
    os.set_inheritable(status, False)

    def say(message: dict[str, str]) -> None:
        nonlocal status
        if status >= 0:
            os.write(status, json.dumps(message).encode() + b"\n")
            os.close(status)
            status = -1

    try:
        settings = Settings.from_json(sys.stdin.read())
        log, mountpoint = settings.mount.log_file, os.path.realpath(settings.mount.mountpoint)
        logs.configure(settings.mount.log_format, settings.mount.log_level, log)
        code = serve(settings, ready=lambda: say({"op": "ready"}))
        # A newer mount at the same place writes to the same file.
        if (
            code == 0
            and log == str(log_file(mountpoint))
            and all(one.mountpoint != mountpoint for one in find_mounts())
        ):
            os.unlink(log)
    except StripefsError as error:
        say({"op": "failed", **describe_error(error)})
        code = error.exit_code
    sys.exit(code)


if __name__ == "__main__":
    main()
