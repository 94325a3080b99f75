"""A small HTTP/1.1 server for tests: the files below a folder, with ranges, versions and faults on demand.

    with WebServer(folder) as server:
        server.fail("short")          # the next GET ends too early
        open_store(StoreSettings(url=server.url))

It does as RFC 9110 says unless a fault or an attribute says otherwise.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import email.utils
import os
import re
import socket
import socketserver
import ssl
import struct
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Literal, NamedTuple, Self
from urllib.parse import unquote_to_bytes, urlsplit

Fault = Literal[
    "short",  # the body ends in its middle, with the connection
    "stuck",  # the body stops in its middle
    "silent",  # nothing is answered
    "reset",  # the connection is reset before an answer
    "reset-body",  # and in the middle of the body
    "closed",  # the connection ends before an answer
    "garbage",  # the answer is not HTTP
    "whole",  # 200 with the whole file
    "shifted",  # 206 with the right length, from one byte further on
    "fewer",  # 206 with one byte less than asked for, which is announced
    "more",  # a chunked 206 with one byte more
    "chunked",  # a right answer of unannounced length
    "unmarked",  # 206 without Content-Range
    "encoded",  # a Content-Encoding that nobody asked for
    "401",
    "403",
    "404",
    "407",
    "416",
    "418",
    "429",
    "500",
    "503",
]

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class Seen(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    connection: int
    """The port that the client connected from."""


class WebServer(socketserver.ThreadingTCPServer):
    """Listens on 127.0.0.1 from the start. The attributes may be set at any time."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, root: Path, *, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = os.fsencode(root)
        self.etag: Literal["strong", "weak", "none"] = "strong"
        self.etag_in_ranges = True
        self.dated = True
        self.conditions = True
        """True if If-Range is understood."""
        self.lengths = True
        self.credentials = ""
        """USER:PASSWORD that every request needs; "" for none."""
        self.redirects: dict[str, str] = {}
        """From a path to where it is redirected to."""
        self.seen: list[Seen] = []
        self.stopping = threading.Event()
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.server_address[1]}"
        self._tls = tls
        self._faults: dict[str, collections.deque[Fault]] = {"GET": collections.deque(), "HEAD": collections.deque()}
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stopping.set()
        self.shutdown()
        self._thread.join()
        self.server_close()
        for connection in self._connections:
            with contextlib.suppress(OSError):  # it has ended already
                connection.shutdown(socket.SHUT_RDWR)

    def fail(self, fault: Fault, times: int = 1, method: str = "GET") -> None:
        """Let the next requests of `method` go wrong."""
        self._faults[method].extend([fault] * times)

    def next_fault(self, method: str) -> Fault | None:
        try:
            return self._faults[method].popleft()
        except IndexError:
            return None

    def count(self, method: str) -> int:
        return sum(1 for request in self.seen if request.method == method)

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        assert isinstance(request, socket.socket)
        self._connections.append(request)
        super().process_request(request, client_address)

    def finish_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        assert isinstance(request, socket.socket)
        with contextlib.suppress(OSError):  # the client went away, or does not trust the certificate
            if self._tls is not None:
                request = self._tls.wrap_socket(request, server_side=True)
            with request:
                super().finish_request(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: WebServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_GET  # noqa: N815 - http.server's name

    def log_message(self, *_: object) -> None:
        """Say nothing on standard error."""

    def _serve(self) -> None:
        server = self.server
        server.seen.append(Seen(self.command, self.path, dict(self.headers), self.client_address[1]))
        fault = server.next_fault(self.command)
        if fault == "silent":
            server.stopping.wait()
        if fault in ("silent", "closed"):
            self.close_connection = True
        elif fault == "reset":
            self._reset()
        elif fault == "garbage":
            self.wfile.write(b"220 mail.example.com ESMTP\r\n")
            self.close_connection = True
        elif fault is not None and fault.isdigit():
            self._refuse(int(fault))
        elif self.path in server.redirects:
            self._refuse(302, {"Location": server.redirects[self.path]})
        elif server.credentials and not self._may():
            self._refuse(401, {"WWW-Authenticate": "Basic"})
        else:
            self._answer(fault)

    def _may(self) -> bool:
        token = base64.b64encode(self.server.credentials.encode()).decode()
        return self.headers.get("Authorization") == f"Basic {token}"

    def _answer(self, fault: Fault | None) -> None:
        name = unquote_to_bytes(urlsplit(self.path).path)  # a client that takes this for a proxy sends the whole URL
        target = self.server.root + name.rstrip(b"/")
        if os.path.isdir(target):
            self._refuse(403) if name.endswith(b"/") else self._refuse(301, {"Location": f"{self.path}/"})
            return
        try:
            with open(target, "rb") as file:
                found = os.fstat(file.fileno())
                self._send(file.read(), found, fault)
        except (FileNotFoundError, NotADirectoryError):
            self._refuse(404)

    def _send(self, whole: bytes, found: os.stat_result, fault: Fault | None) -> None:
        tag, date = self._versions(found)
        asked = _RANGE.fullmatch(self.headers.get("Range", "")) if self.command == "GET" else None
        wanted = self.headers.get("If-Range")
        partial = asked is not None and fault != "whole"
        if partial and wanted is not None and self.server.conditions:
            partial = wanted == tag and tag.startswith('"')
        headers = {"Accept-Ranges": "bytes", "Last-Modified": date, "ETag": tag}
        code, body = 200, whole
        if partial and asked is not None:
            if not self.server.etag_in_ranges:
                headers |= {"ETag": "", "Last-Modified": ""}
            start, stop = int(asked[1]), min(int(asked[2]) + 1, len(whole))
            if start >= len(whole):
                self._refuse(416, {"Content-Range": f"bytes */{len(whole)}"})
                return
            start, stop = (start + 1, stop + 1) if fault == "shifted" else (start, stop - (fault == "fewer"))
            code, body = 206, whole[start:stop]
            headers["Content-Range"] = "" if fault == "unmarked" else f"bytes {start}-{stop - 1}/{len(whole)}"
        if fault == "encoded":
            headers["Content-Encoding"] = "gzip"
        if fault in ("more", "chunked"):
            headers["Transfer-Encoding"] = "chunked"
        elif self.server.lengths:
            headers["Content-Length"] = str(len(body))
        self._head(code, headers)
        if self.command == "GET":
            self._body(body, fault)

    def _body(self, body: bytes, fault: Fault | None) -> None:
        if fault in ("more", "chunked"):
            body += b"!" if fault == "more" else b""
            self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
            return
        if fault not in ("short", "stuck", "reset-body"):
            self.wfile.write(body)
            return
        self.wfile.write(body[: len(body) // 2])
        if fault == "stuck":
            self.server.stopping.wait()
        if fault == "reset-body":
            self._reset()
        self.close_connection = True

    def _versions(self, found: os.stat_result) -> tuple[str, str]:
        tag = f'"{found.st_ino:x}-{found.st_size:x}-{found.st_mtime_ns:x}"'
        tag = {"strong": tag, "weak": f"W/{tag}", "none": ""}[self.server.etag]
        return tag, email.utils.formatdate(found.st_mtime, usegmt=True) if self.server.dated else ""

    def _refuse(self, code: int, headers: Mapping[str, str] | None = None) -> None:
        body = b"" if self.command == "HEAD" else b"no"
        self._head(code, {"Content-Length": str(len(body)), **(headers or {})})
        self.wfile.write(body)

    def _head(self, code: int, headers: Mapping[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        if self.command == "GET" and not {"Content-Length", "Transfer-Encoding"} & headers.keys():
            self.send_header("Connection", "close")
        self.end_headers()

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())  # closing the object would wait for the files made of it
        self.close_connection = True
