"""nginx as docs/mirrors.md sets it up, before a store that is served by HTTP."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.checkout import CHECKOUT
from tests.support.waiting import eventually
from tests.tools.listening import accepts, free_port

__all__ = ["Nginx", "nginx"]

_DOCUMENT = CHECKOUT / "docs/mirrors.md"
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


class Nginx:
    """One that runs below `folder` and keeps what is below `store`, a URL. `url` stands for the same images."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}/images"
        (folder / "temporary").mkdir(parents=True)
        (folder / "nginx.conf").write_text(self._configuration(store.removeprefix("http://").partition("/")[0]))
        self._process = self._started()

    def _configuration(self, store: str) -> str:
        """That of the document, with folders, ports and a user of this test, in the foreground."""
        text: str
        (text,) = re.findall(r"```nginx\n(.*?)```", _DOCUMENT.read_text(), re.DOTALL)
        here = {
            "user www-data;": "user root; daemon off;",
            "worker_processes auto;": "worker_processes 2;",
            "pid /run/nginx.pid;": f"pid {self.folder}/pid;",
            "error_log /var/log/nginx/error.log warn;": f"error_log {self.folder}/log warn;",
            "worker_connections 8192;": "worker_connections 512;",
            "/var/cache/nginx/imagefs": f"{self.folder}/cache",
            "server store.example:80;": f"server {store};",
            "proxy_set_header Host store.example;": f"proxy_set_header Host {store};",
            "listen 8080;": f"listen 127.0.0.1:{self._port};",
            "sendfile on;": "\n".join(f"{one}_temp_path {self.folder}/temporary;" for one in _TEMPORARY),
        }
        for there, replaced in here.items():
            assert text.count(there) == 1, there
            text = text.replace(there, replaced)
        return text

    def _started(self) -> subprocess.Popen[bytes]:
        folder = str(self.folder)
        command = ["nginx", "-p", folder, "-e", f"{folder}/log", "-c", f"{folder}/nginx.conf"]
        process = subprocess.Popen(command, start_new_session=True)
        eventually(lambda: accepts(self._port), "nginx")
        return process

    def kill(self) -> None:
        """With all its workers, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def nginx(folder: Path, store: str) -> Iterator[Nginx]:
    server = Nginx(folder, store)
    try:
        yield server
    finally:
        server.kill()
