"""Starts of jobs on hosts of a test's own: `Host.start` is what `imagefs deps` does once it knows the key.

As a program, `python -m tests.support.deps.starting`, it does so for the JSON on its standard input.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from imagefs.daemon import processes
from imagefs.daemon.client import Client
from imagefs.deps.host import HostRequest, run
from imagefs.settings import DaemonSettings
from stripefs.errors import StripefsError
from stripefs.fuse import kernel
from stripefs.settings import StoreSettings
from tests.support.checkout import CHECKOUT
from tests.support.deps.wheels import uv
from tests.tools.imagefs_daemon import PATIENCE, Service

__all__ = ["away", "by_uv", "done", "is_mounted", "key_of", "start"]


def start(
    service: Service,
    store: Path | str,
    target: Path,
    command: Sequence[str],
    *,
    user: int = 0,
    under: Sequence[str] = (),
    **more: Any,
) -> subprocess.Popen[str]:
    """A start, under way. user: the process that uses it, this one unless given; -1 for that of the start itself, which
    then runs a program in Python that is given as `then`. under: what runs all that.
    """
    job = {
        "settings": service.settings._asdict(),
        "store": str(store),
        "target": str(target),
        "command": list(command),
        "user": user or os.getpid(),
        **more,
    }
    process = subprocess.Popen(
        [*under, sys.executable, "-m", "tests.support.deps.starting"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
        env={**service.environment, "PIP_ROOT_USER_ACTION": "ignore"},
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(job))
    process.stdin.flush()
    process.stdin.close()
    process.stdin = None
    return process


def done(service: Service, store: Path | str, target: Path, command: Sequence[str], **more: Any) -> tuple[int, str]:
    """The exit status and the lines of a start."""
    process = start(service, store, target, command, **more)
    _, told = process.communicate(timeout=PATIENCE * 4)
    return process.returncode, told


def by_uv(wheels: Path, target: Path) -> list[str]:
    """The command that installs the package `heavy`. pip takes twenty times as long, and no start depends on which."""
    return uv("--no-cache", "--python", sys.executable, "--target", target, "--find-links", wheels, "heavy")


def away(target: Path) -> None:
    """As on a host that has nothing yet."""
    shutil.rmtree(target)


def is_mounted(target: Path) -> bool:
    return kernel.find_mount(str(target)) is not None


def key_of(target: Path | str, salt: str = "") -> dict[str, Any]:
    """The key of a start."""
    return {"targets": [str(target)], "salt": salt}


def _main(job: dict[str, Any]) -> int:
    user, then = job.pop("user"), job.pop("then", "")
    user = os.getpid() if user < 0 else user
    client = Client(DaemonSettings(**job.pop("settings")))
    store, target, command = StoreSettings(url=job.pop("store")), job.pop("target"), job.pop("command")
    key = key_of(target, job.pop("salt", ""))
    users = [(user, processes.began(user))]
    request = HostRequest(store, key, target, command, sys.executable, {}, users, **job)
    try:
        status = run(client, request, lambda line: print(line, file=sys.stderr, flush=True))
    except StripefsError as error:
        print(error, file=sys.stderr, flush=True)
        return error.exit_code
    if status or not then:
        return status
    return subprocess.run([sys.executable, "-P", "-c", then], env={**os.environ, "PYTHONPATH": target}).returncode


if __name__ == "__main__":
    sys.exit(_main(json.loads(sys.stdin.read())))
