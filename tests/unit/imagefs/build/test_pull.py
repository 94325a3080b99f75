"""skopeo: its command line, its output and its end with us; and blobs that are fetched from registries themselves."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from imagefs.build.pull import Blobs, Registry, RegistryRefused, fetch
from imagefs.errors import BuildError
from imagefs.progress import Progress
from imagefs.reference import Platform
from imagefs.repository.artifact import Descriptor
from stripefs.errors import ConfigError


class Seen(Progress):
    def __init__(self) -> None:
        self.bytes = 0

    def advance(self, count: int) -> None:
        self.bytes += count


@pytest.fixture
def skopeo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a script that stands for skopeo."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path / "bin/skopeo"


def write(skopeo: Path, text: str) -> None:
    skopeo.write_text(f"#!{sys.executable}\nimport os, sys, time\n{text}\n")
    skopeo.chmod(skopeo.stat().st_mode | stat.S_IXUSR)


def test_what_it_is_asked(skopeo: Path, tmp_path: Path) -> None:
    asked = tmp_path / "layout/asked"
    write(skopeo, f"print('{{}}'); open({str(asked)!r}, 'a').write(repr(sys.argv[1:]) + chr(10))")
    seen = Seen()
    platform = Platform("linux", "arm64", "v8")
    fetch("docker://host/app:1", tmp_path / "layout", platform, Registry("/auth.json", tls_verify=False), seen)
    text = asked.read_text()
    always = [f"--tmpdir={tmp_path}", "--override-os=linux", "--override-arch=arm64", "--override-variant=v8"]
    inspect, copy = map(eval, text.splitlines())
    access = ["--tls-verify=false", "--authfile=/auth.json"]
    assert inspect == [*always, "inspect", "--raw", *access, "docker://host/app:1"]
    assert copy == [
        *always,
        "copy",
        "--quiet",
        "--src-tls-verify=false",
        "--src-authfile=/auth.json",
        "docker://host/app:1",
        f"oci:{tmp_path / 'layout'}",
    ]
    assert seen.bytes == len(text)


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ('time="now" level=fatal msg="reading \\"app\\": no such image"', 'reading "app": no such image'),
        ("first line\nlast line", "last line"),
        ("", "skopeo said nothing"),
    ],
)
def test_what_it_says_when_it_fails(skopeo: Path, tmp_path: Path, said: str, what: str) -> None:
    write(skopeo, f"sys.stderr.write({said!r}); sys.exit(1)")
    with pytest.raises(BuildError, match="docker://app cannot be fetched: ") as failure:
        fetch("docker://app", tmp_path / "layout", Platform.current(), Registry(), Progress())
    assert failure.value.message.endswith(what)


def test_it_ends_with_us(skopeo: Path, tmp_path: Path) -> None:
    write(skopeo, f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)")

    class Interrupt(Progress):
        def advance(self, count: int) -> None:
            if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("docker://app", tmp_path / "layout", Platform.current(), Registry(), Interrupt())
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()


@pytest.mark.parametrize("text", ["linux", "linux/", "/amd64", "linux/arm64/v8/x", ""])
def test_what_is_no_platform(text: str) -> None:
    with pytest.raises(ConfigError):
        Platform.parse(text)


def test_which_entries_fit() -> None:
    wanted = Platform.parse("linux/arm64")
    assert str(wanted) == "linux/arm64"
    assert wanted.fits({"os": "linux", "architecture": "arm64", "variant": "v8"})
    assert wanted.fits({})
    assert not wanted.fits({"os": "linux", "architecture": "amd64"})
    assert not wanted.fits({"os": "unknown", "architecture": "unknown"})
    assert not Platform.parse("linux/arm64/v7").fits({"os": "linux", "architecture": "arm64", "variant": "v8"})
    assert Platform.current().architecture


# -- blobs of registries ---------------------------------------------------------------------------------------------


DATA = b"content of a layer" * 1000
BLOB = Descriptor("", "sha256:" + hashlib.sha256(DATA).hexdigest(), len(DATA))
KNOWN = base64.b64encode(b"ann:secret").decode()


class Server:
    """A registry whose blobs lie at another host, on another port. seen: path and credentials of each request."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.scheme = "Bearer"
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


def blobs(server: Server, tmp_path: Path, auths: dict[str, object]) -> Blobs:
    (tmp_path / "auth.json").write_text(json.dumps({"auths": auths}))
    registry = Registry(str(tmp_path / "auth.json"), tls_verify=False, io_timeout=30.0)
    return Blobs(f"docker://{server.host}/team/app:1", registry)


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
    refused: tuple[dict[str, object], ...] = (
        {},
        {server.host: {"auth": base64.b64encode(b"bob:x").decode()}},
        {server.host: {}},
    )
    for auths in refused:
        with pytest.raises(RegistryRefused):
            blobs(server, tmp_path, auths).fetch(BLOB, tmp_path / "blob", lambda _: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["auth.json"]


HELPER = """#!/bin/sh
read -r server
echo "$1 $server" >> {log}
{answer}
"""


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
    program.write_text(HELPER.format(log=tmp_path / "log", answer=answer))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    server.scheme = "Basic"
    found = blobs(server, tmp_path, {})
    for helper in ("vault", "../docker-credential-vault", "no-such"):
        (tmp_path / "auth.json").write_text(json.dumps({"credHelpers": {server.host: helper}}))
        with pytest.raises(RegistryRefused):
            found.fetch(BLOB, tmp_path / "blob", lambda _: None)
    assert set((tmp_path / "log").read_text().splitlines()) == {f"get {server.host}"}
