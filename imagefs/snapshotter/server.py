"""The snapshotter as a service: one process that listens until SIGTERM, and leaves all mounts as they are; and its page
of metrics, of which `imagefs.metrics.SNAPSHOTTER` is the table.

The page is served at loopback addresses only, by threads of the standard library's server, because the snapshotter has
no event loop.

It never forks after gRPC has begun; programs are started by `posix_spawn`'s kind of start, which runs none of its code.
"""

from __future__ import annotations

import contextlib
import http.server
import logging
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from imagefs.blocks.stats import Waits
from imagefs.daemon.client import Client
from imagefs.metrics import SNAPSHOTTER
from imagefs.settings import DaemonSettings, SnapshotterSettings
from imagefs.snapshotter.grpc_service import serve
from imagefs.snapshotter.lazy import DaemonImages
from imagefs.snapshotter.snapshotter import Snapshotter
from imagefs.snapshotter.start_events import NodeEvents
from stripefs import __version__
from stripefs.errors import MountError, StripefsError
from stripefs.fuse.control import metrics_listener
from stripefs.metrics import render
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


_READS_WITHIN = 10.0
"""Seconds for a client to send its request."""


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
        core, calls, stopped = Snapshotter(root, images, events), _Calls(), threading.Event()
        held.callback(events.close)
        held.callback(core.close)
        held.callback(images.close)  # before the database that its thread asks
        held.enter_context(_serving(chosen.metrics, lambda: _page(calls, core)))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())
        stop = serve(core, Path(chosen.socket), calls.add)
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


# -- metrics


class _Calls:
    """Durations of calls by their method, and how many failed by status code. Any thread may add."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, Waits] = {}
        self._errors: Counter[str] = Counter()
        self._started = time.time()

    def add(self, method: str, seconds: float, error: str = "") -> None:
        """A call is over. error: its status code in capitals, "" where it was answered."""
        with self._lock:
            self._seconds.setdefault(method, Waits()).add(seconds)
            if error:
                self._errors[error] += 1

    def figures(self) -> dict[str, Any]:
        with self._lock:
            return {
                "started_at": self._started,
                "calls": {method: one.snapshot() for method, one in sorted(self._seconds.items())},
                "errors": dict(sorted(self._errors.items())),
            }


def _page(calls: _Calls, core: Snapshotter) -> str:
    """The metrics in the text format 0.0.4."""
    return render({"version": __version__, **calls.figures(), **core.figures()}, SNAPSHOTTER)


@contextlib.contextmanager
def _serving(address: str, text: Callable[[], str]) -> Iterator[None]:
    """Serve `text()` as /metrics at HOST:PORT meanwhile; nothing where the address is "". Raises ConfigError."""
    with contextlib.ExitStack() as held:
        for listener in metrics_listener(address, held):
            server = _Server(listener, text)
            threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
            held.callback(server.shutdown)
        yield


class _Server(http.server.ThreadingHTTPServer):
    """Answers at a socket that listens already."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, text: Callable[[], str]) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.text = text


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = _READS_WITHIN
    server: _Server

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "see /metrics")
            return
        try:
            body = self.server.text().encode()
        except Exception:  # noqa: BLE001  told to the client and in the log
            _log.exception("metrics could not be shown")
            self.send_error(500, "see the log")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002  named by the library
        _log.debug(format, *arguments)
