"""A start for the JSON on standard input: `imagefs.deps.host.run` is what `imagefs deps` does once it knows the key.

It imports little, since each start of a test is a process of its own.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from imagefs.daemon import processes
from imagefs.daemon.client import Client
from imagefs.deps.host import HostRequest, run
from imagefs.settings import DaemonSettings
from stripefs.errors import StripefsError
from stripefs.settings import StoreSettings


def _main(job: dict[str, Any]) -> int:
    user = job.pop("user")
    client = Client(DaemonSettings(**job.pop("settings")))
    store, target, command = StoreSettings(url=job.pop("store")), job.pop("target"), job.pop("command")
    key = {"targets": [target], "salt": job.pop("salt", "")}
    users = [(user, processes.began(user))]
    request = HostRequest(store, key, target, command, sys.executable, {}, users, **job)
    try:
        return run(client, request, lambda line: print(line, file=sys.stderr, flush=True))
    except StripefsError as error:
        print(error, file=sys.stderr, flush=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(_main(json.loads(sys.stdin.read())))
