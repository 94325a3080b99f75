"""A proxy before a registry that breaks off, stalls and spoils what a test wants it to."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, NamedTuple

__all__ = ["BrokenRegistry", "Fault", "broken"]


class Fault(NamedTuple):
    """Happens to one GET of a path with `part` in it, after `after` bytes of the answer."""

    part: str
    kind: Literal["drop", "stall", "spoil", "busy", "no-ranges"]
    after: int = 0


@dataclass
class BrokenRegistry:
    """address: HOST:PORT. faults: that are still to come. asked: path and Range of each GET. sent: bytes of blobs."""

    address: str
    faults: list[Fault] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    sent: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    end: threading.Event = field(default_factory=threading.Event)

    def ranges(self, digest: str) -> list[str]:
        """Of the requests for a blob, in order."""
        return [begin for path, begin in self.asked if path.endswith(digest)]


@contextmanager
def broken(upstream: str) -> Iterator[BrokenRegistry]:
    """One before the registry at `upstream`, a HOST:PORT."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            fault = self._fault() if self.command == "GET" else None
            if fault and fault.kind == "busy":
                self.send_response(503)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            wanted = {name: self.headers[name] for name in ("Accept", "Range") if name in self.headers}
            if fault and fault.kind == "no-ranges":
                wanted.pop("Range", None)
            connection = http.client.HTTPConnection(upstream)
            try:
                connection.request(self.command, self.path, headers={**wanted, "Host": made.address})
                answer = connection.getresponse()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("connection", "date", "server"):
                        self.send_header(name, value)
                self.end_headers()
                data = answer.read() if self.command == "GET" else b""
            finally:
                connection.close()
            self._send(data, fault)

        def _fault(self) -> Fault | None:
            with made.lock:
                made.asked.append((self.path, self.headers.get("Range", "")))
                found = next((one for one in made.faults if one.part in self.path), None)
                if found:
                    made.faults.remove(found)
                return found

        def _send(self, data: bytes, fault: Fault | None) -> None:
            if fault and fault.kind == "spoil":
                data = data[: fault.after] + bytes([data[fault.after] ^ 1]) + data[fault.after + 1 :]
            ends = fault is not None and fault.kind in ("drop", "stall")
            part = data[: fault.after] if fault and ends else data
            try:
                self.wfile.write(part)
                self.wfile.flush()
            except OSError:
                return  # who asked has gone
            if "/blobs/" in self.path:
                with made.lock:
                    made.sent += len(part)
            if fault and fault.kind == "stall":
                made.end.wait()
            if ends:
                self.close_connection = True

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as server:
        made = BrokenRegistry(f"127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield made
        finally:
            made.end.set()
            server.shutdown()
            thread.join()
