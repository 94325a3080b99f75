"""The snapshotter as a service: one process that listens until SIGTERM, and leaves all mounts as they are.

It never forks after gRPC has begun; programs are started by `posix_spawn`'s kind of start, which runs none of its code.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from imagefs.daemon.client import Client
from imagefs.settings import DaemonSettings, SnapshotterSettings
from imagefs.snapshotter.core import Snapshotter
from imagefs.snapshotter.lazy import DaemonImages
from imagefs.snapshotter.metrics import Calls, page, serving
from imagefs.snapshotter.service import serve
from imagefs.snapshotter.start_events import NodeEvents
from stripefs.errors import MountError, StripefsError
from stripefs.osutil import try_flock
from stripefs.settings import StoreSettings
from stripefs.systemd import notify

__all__ = ["run"]

_log = logging.getLogger(__name__)

_LOOKS_EVERY = 30.0
"""Seconds between two looks at the daemon's mounts: one that was restarted knows no leases."""

_DAEMON_RETURNS_WITHIN = 10.0
"""Seconds that containers which start wait for a daemon that was killed, or is exchanged: it is back after one, and a
Prepare that fails costs a pod a back-off of kubelet's."""

_ENDS_WITHIN = 10.0
"""Seconds that requests under way have to end after SIGTERM; what they leave undone is put right at the next start."""


def run(
    chosen: SnapshotterSettings, daemon: DaemonSettings, store_at: Callable[[str], StoreSettings], deps: str
) -> int:
    """Serve until SIGTERM or SIGINT; the exit status. Raises StripefsError for what keeps it from starting.

    store_at: how the store at a URL is reached. deps: the store of dependency snapshots that name none.
    """
    if os.geteuid() != 0:
        raise MountError("the snapshotter makes mounts for containerd", hint="run it as root")
    root = Path(chosen.root)
    try:
        root.mkdir(mode=0o711, parents=True, exist_ok=True)
    except OSError as error:
        raise MountError(f"{root} cannot be made: {error.strerror}") from error
    with contextlib.ExitStack() as held:
        held.enter_context(_only_one(root))
        return _serve(chosen, daemon, store_at, deps, root, held)


@contextlib.contextmanager
def _only_one(root: Path) -> Iterator[None]:
    """No other snapshotter has this root meanwhile. Raises MountError where one has."""
    try:
        file = (root / "lock").open("ab")
    except OSError as error:
        raise MountError(f"{root} cannot be used: {error.strerror}") from error
    with file:
        if not try_flock(file.fileno()):
            raise MountError(
                f"another snapshotter has the folder {root}", hint="end it first, or choose another --root"
            )
        yield


def _serve(
    chosen: SnapshotterSettings,
    daemon: DaemonSettings,
    store_at: Callable[[str], StoreSettings],
    deps: str,
    root: Path,
    held: contextlib.ExitStack,
) -> int:
    events = NodeEvents(daemon.events)
    images = DaemonImages(
        Client(daemon, starts=False, waits=_DAEMON_RETURNS_WITHIN),
        chosen.stores,
        store_at,
        name=f"snapshotter {root.resolve()}",
        built=root / "built",
        deps=deps,
        registries=chosen.registries,
        plain_http=chosen.plain_http,
        events=events,
    )
    core, calls, stopped = Snapshotter(root, images, events), Calls(), threading.Event()
    held.callback(events.close)
    held.callback(core.close)
    held.callback(images.close)  # before the database that its thread asks
    held.enter_context(serving(chosen.metrics, lambda: page(calls, core.figures)))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    stop = serve(core, Path(chosen.socket), calls)
    threading.Thread(target=_reconcile, args=(core, stopped), daemon=True).start()
    notify("READY=1")
    _log.info("answers containerd at %s", chosen.socket)
    try:
        stopped.wait()
    finally:
        notify("STOPPING=1")
        all_ended = stop(_ENDS_WITHIN)
        Path(chosen.socket).unlink(missing_ok=True)
    if not all_ended:
        _log.warning("requests that did not end are given up; the next start puts right what they left undone")
        logging.shutdown()
        os._exit(0)
    return 0


def _reconcile(core: Snapshotter, stopped: threading.Event) -> None:
    """Keep the daemon's mounts as the snapshots need them. Its errors are those of one look."""
    try:
        core.cleanup()
    except OSError as error:
        _log.warning("what earlier snapshots left stays for now: %s", error)
    while True:
        try:
            core.reconcile()
        except StripefsError as error:
            _log.warning("the daemon does not answer: %s", error)
        except Exception:  # noqa: BLE001  the next look may go well
            _log.exception("the mounts of snapshots could not be looked at")
        if stopped.wait(_LOOKS_EVERY):
            return
