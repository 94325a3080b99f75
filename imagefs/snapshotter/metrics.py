"""Metrics of the snapshotter: what its calls came to, counted by the threads that answer, and a page over HTTP.

`imagefs.metrics.SNAPSHOTTER` is the table of all of them, with their names and meanings. The page is served by threads
of the standard library's server, because the snapshotter has no event loop. It is served at loopback addresses only.
"""

from __future__ import annotations

import contextlib
import http.server
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from imagefs.blocks.stats import Waits
from imagefs.metrics import SNAPSHOTTER
from stripefs import __version__
from stripefs.fuse.control import metrics_listener
from stripefs.metrics import render

__all__ = ["Calls", "page", "serving"]

_log = logging.getLogger(__name__)

_READS_WITHIN = 10.0
"""Seconds for a client to send its request."""


class Calls:
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


def page(calls: Calls, figures: Callable[[], dict[str, Any]]) -> str:
    """The metrics in the text format 0.0.4. figures: of `Snapshotter.figures`."""
    return render({"version": __version__, **calls.figures(), **figures()}, SNAPSHOTTER)


@contextlib.contextmanager
def serving(address: str, text: Callable[[], str]) -> Iterator[None]:
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
