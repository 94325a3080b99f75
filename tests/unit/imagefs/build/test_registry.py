"""Blobs of registries: credentials, pauses, and when nothing is hoped for any more."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from imagefs.build.oci import LayoutDescriptor
from imagefs.build.pull import Blobs, Registry, RegistryRefused
from imagefs.errors import BuildError
from stripefs.retry import RetryClock

DATA = b"content of a layer" * 1000
BLOB = LayoutDescriptor("", "sha256:" + hashlib.sha256(DATA).hexdigest(), len(DATA))
KNOWN = base64.b64encode(b"ann:secret").decode()


class Server:
    """A registry whose blobs lie at another host, on another port. seen: path and credentials of each request."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.scheme = "Bearer"
        self.broken = False
        self.token: bytes | None = None  # the token service's answer, in place of a token
        here = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *arguments: object) -> None:
                pass

            def do_GET(self) -> None:
                here.answer(self)

        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
        self.host, self.other = (f"127.0.0.1:{one.server_address[1]}" for one in self._servers)
        self._threads = [threading.Thread(target=one.serve_forever, args=(0.05,)) for one in self._servers]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        for thread in self._threads:
            thread.join()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path, given = request.path.partition("?")[0], request.headers.get("Authorization", "")
        self.seen.append((path, given))
        if self.broken:
            return  # the connection ends without an answer
        if path == "/token":
            ok = given in ("", f"Basic {KNOWN}")
            token = json.dumps({"token": "T" if given else "anonymous"}).encode()
            self._send(request, 200 if ok else 403, token if self.token is None else self.token)
        elif path.startswith("/v2/"):
            wanted = "Bearer T" if self.scheme == "Bearer" else f"Basic {KNOWN}"
            if given == wanted:
                self._send(request, 307, b"", {"Location": f"http://{self.other}/elsewhere"})
            else:
                challenge = f'{self.scheme} realm="http://{self.host}/token",service="s",scope="x"'
                self._send(request, 401, b"", {"WWW-Authenticate": challenge})
        else:
            self._send(request, 200, DATA)

    @staticmethod
    def _send(request: BaseHTTPRequestHandler, code: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        request.send_response(code)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(data)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def blobs(server: Server, tmp_path: Path, auths: dict[str, object], clock: RetryClock | None = None) -> Blobs:
    (tmp_path / "auth.json").write_text(json.dumps({"auths": auths}))
    registry = Registry(str(tmp_path / "auth.json"), tls_verify=False, io_timeout=30.0)
    return Blobs(f"docker://{server.host}/team/app:1", registry, clock or RetryClock())


@pytest.mark.parametrize("scheme", ["Bearer", "Basic"])
@pytest.mark.parametrize("key", ["", "/team/app"])
def test_credentials_are_for_the_registry_alone(server: Server, tmp_path: Path, scheme: str, key: str) -> None:
    server.scheme = scheme
    counted: list[int] = []
    found = blobs(server, tmp_path, {server.host + key: {"auth": KNOWN}})
    found.fetch(BLOB, tmp_path / "blob", counted.append)
    assert (tmp_path / "blob").read_bytes() == DATA
    assert sum(counted) == len(DATA)
    assert ("/elsewhere", "") in server.seen
    assert all(given == "" for path, given in server.seen if path == "/elsewhere")


@pytest.mark.parametrize("answer", [b"", b"<html>", b"[]", b"{}"])
def test_a_token_service_that_gives_none_refuses(server: Server, tmp_path: Path, answer: bytes) -> None:
    server.token = answer
    with pytest.raises(RegistryRefused, match="token"):
        blobs(server, tmp_path, {}).fetch(BLOB, tmp_path / "blob", lambda _: None)


def test_what_is_refused_is_left_to_others(server: Server, tmp_path: Path) -> None:
    for auths in ({}, {server.host: {"auth": base64.b64encode(b"bob:x").decode()}}, {server.host: {}}):
        with pytest.raises(RegistryRefused):
            blobs(server, tmp_path, dict(auths)).fetch(BLOB, tmp_path / "blob", lambda _: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["auth.json"]


def test_pauses_double_until_nothing_is_hoped_for(server: Server, tmp_path: Path) -> None:
    server.broken = True
    pauses: list[float] = []
    clock = RetryClock(lambda: sum(pauses), pauses.append)
    with pytest.raises(BuildError, match="sent nothing for 30 s"):
        blobs(server, tmp_path, {}, clock).fetch(BLOB, tmp_path / "blob", lambda _: None)
    expected = [min(10.0, 0.2 * 2**tries) for tries in range(len(pauses))]
    assert all(0.75 * longest <= pause <= longest for pause, longest in zip(pauses, expected, strict=True))
    assert sum(pauses) < 30 <= sum(pauses) + 10.0
    assert not (tmp_path / "blob").exists()


HELPER = """#!/bin/sh
read -r server
echo "$1 $server" >> {log}
{answer}
"""


@pytest.mark.parametrize("kind", ["credHelpers", "credsStore"])
def test_credentials_of_a_helper(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    log, program = tmp_path / "log", tmp_path / "docker-credential-vault"
    program.write_text(HELPER.format(log=log, answer='echo \'{"Username": "ann", "Secret": "secret"}\''))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = blobs(server, tmp_path, {})
    config = {"credHelpers": {server.host: "vault"}} if kind == "credHelpers" else {"credsStore": "vault"}
    (tmp_path / "auth.json").write_text(json.dumps(config))
    found.fetch(BLOB, tmp_path / "blob", lambda _: None)
    assert (tmp_path / "blob").read_bytes() == DATA
    assert log.read_text().splitlines()[0] == f"get {server.host}"


@pytest.mark.parametrize(
    "answer",
    [
        "echo not found; exit 1",
        "echo '[]'",
        "echo nonsense",
        'echo \'{"Username": "<token>", "Secret": "s"}\'',
    ],
)
def test_a_helper_that_knows_nothing_leaves_it_to_others(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    program = tmp_path / "docker-credential-vault"
    program.write_text(HELPER.format(log="/dev/null", answer=answer))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    server.scheme = "Basic"
    found = blobs(server, tmp_path, {})
    for helper in ("vault", "../docker-credential-vault", "no-such"):
        (tmp_path / "auth.json").write_text(json.dumps({"credHelpers": {server.host: helper}}))
        with pytest.raises(RegistryRefused):
            found.fetch(BLOB, tmp_path / "blob", lambda _: None)
