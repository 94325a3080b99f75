"""A start for the JSON on standard input: `imagefs.deps.host.run` is what `imagefs deps` does once it knows the key.

It imports little, since each start of a test is a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from imagefs.daemon import processes
from imagefs.daemon.client import Client
from imagefs.deps.host import HostRequest, run
from imagefs.settings import DaemonSettings
from stripefs.errors import StripefsError
from stripefs.settings import StoreSettings

__all__ = ["key_of"]


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
