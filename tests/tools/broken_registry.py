"""A proxy before a registry that breaks off, stalls and spoils what a test wants it to, and may want tokens."""

from __future__ import annotations

import base64
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Literal, NamedTuple

from tests.tools.listening import http_server

__all__ = ["PASSWORD", "BrokenRegistry", "Fault", "broken"]

PASSWORD = "Basic " + base64.b64encode(b"ann:secret").decode()
_FORWARDED = ("Accept", "Range", "Content-Type")


class Fault(NamedTuple):
    """Happens to one GET of a path with `part` in it, after `after` bytes of the answer.

    answer: status and body in place of the registry's. redirect: to the place in `text`, for as long as the fault is
    there.
    """

    part: str
    kind: Literal["drop", "stall", "spoil", "busy", "no-ranges", "answer", "redirect"]
    after: int = 0
    text: str = ""


@dataclass
class BrokenRegistry:
    """address: HOST:PORT. faults: that are still to come. asked: path and Range of each GET. sent: bytes of blobs.

    token_uses: 0, or for how many requests a token serves, which are asked for by those who have the password. tokens:
    what was asked of the token service. seen: Authorization of each request.
    """

    address: str
    faults: list[Fault] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    sent: int = 0
    token_uses: int = 0
    tokens: list[tuple[str, str]] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    uses_left: int = 0
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

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if not self._is_allowed():
                return
            fault = self._fault() if self.command == "GET" else None
            if fault and fault.kind in ("busy", "answer", "redirect"):
                code = {"busy": 503, "answer": fault.after, "redirect": 307}[fault.kind]
                self._answer(code, fault.text.encode(), {"Location": fault.text} if code == 307 else {})
                return
            wanted = {name: self.headers[name] for name in _FORWARDED if name in self.headers}
            if fault and fault.kind == "no-ranges":
                wanted.pop("Range", None)
            with closing(http.client.HTTPConnection(upstream)) as connection:
                connection.request(self.command, self.path, body, {**wanted, "Host": made.address})
                answer = connection.getresponse()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("connection", "date", "server"):
                        self.send_header(name, value)
                self.end_headers()
                data = answer.read() if self.command != "HEAD" else b""
            self._send(data, fault)

        do_HEAD = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - http.server's names

        def _answer(self, code: int, data: bytes, headers: dict[str, str]) -> None:
            self.send_response(code)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data if self.command != "HEAD" else b"")

        def _is_allowed(self) -> bool:
            """Answers itself what the token service is asked, and those who bring no token that holds."""
            given = self.headers.get("Authorization", "")
            with made.lock:
                made.seen.append(given)
                if self.path.startswith("/token"):
                    made.tokens.append((self.path, given))
                    made.uses_left = made.token_uses
                    token = json.dumps({"token": f"T{len(made.tokens)}"}).encode()
                    self._answer(*((200, token) if given == PASSWORD else (403, b"")), {})
                    return False
                if made.token_uses == 0:
                    return True
                made.uses_left -= 1
                if made.uses_left >= 0 and given == f"Bearer T{len(made.tokens)}":
                    return True
                name = self.path.removeprefix("/v2/").partition("/")[0]
                actions = "pull" if self.command in ("GET", "HEAD") else "pull,push,delete"
                scope = f'scope="repository:{name}:{actions}"'
                realm = f'Bearer realm="http://{made.address}/token",service="s",{scope}'
                self._answer(401, b"", {"WWW-Authenticate": realm})
                return False

        def _fault(self) -> Fault | None:
            with made.lock:
                made.asked.append((self.path, self.headers.get("Range", "")))
                found = next((one for one in made.faults if one.part in self.path), None)
                if found and found.kind != "redirect":
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
                return  # the client has gone
            if "/blobs/" in self.path:
                with made.lock:
                    made.sent += len(part)
            if fault and fault.kind == "stall":
                made.end.wait()
            if ends:
                self.close_connection = True

    with http_server(Handler) as server:
        made = BrokenRegistry(f"127.0.0.1:{server.server_port}")
        try:
            yield made
        finally:
            made.end.set()
