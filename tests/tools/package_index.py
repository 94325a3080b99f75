"""A package index on loopback (PEP 503), of a folder with a folder of files for each project."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from tests.tools.listening import http_server

__all__ = ["Index", "serving"]


class Index:
    """url: of its root. asked: the paths that were asked for. sent: how often each was sent in
    full. digests: whether it tells those of its files."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{port}/simple"
        self.asked: list[str] = []
        self.sent: dict[str, int] = {}
        self.digests = True

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Kind and bytes of what is at a path; None where there is nothing."""
        self.asked.append(path)
        name = path.removeprefix("/simple/").strip("/")
        place = self.folder / name
        if place.is_file():
            return "application/octet-stream", place.read_bytes()
        if not place.is_dir():
            return None
        return "text/html", "".join(map(self._link, sorted(place.iterdir()))).encode()

    def _link(self, file: Path) -> str:
        digest = f"#sha256={hashlib.sha256(file.read_bytes()).hexdigest()}" if self.digests and file.is_file() else ""
        return f'<a href="{file.name}{digest}">{file.name}</a>\n'


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Index]:
    """An index of this folder while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = index.answer(self.path)
            kind, data = found or ("text/plain", b"")
            tag = f'"{hashlib.sha256(data).hexdigest()}"'
            if found and self.headers["If-None-Match"] == tag:
                self.send_response(304)
                self.send_header("ETag", tag)
                self.end_headers()
                return
            self.send_response(200 if found else 404)
            self.send_header("ETag", tag)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "GET":
                index.sent[self.path] = index.sent.get(self.path, 0) + 1
                self.wfile.write(data)

        do_HEAD = do_GET  # noqa: N815 - http.server's name

        def log_message(self, *_: object) -> None:
            pass

    with http_server(Handler) as server:
        index = Index(folder, server.server_port)
        yield index
