"""skopeo: its command line, its output and its end with us; and blobs that are fetched from registries themselves."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from imagefs.build.pull import Blobs, Registry, RegistryRefused, fetch
from imagefs.errors import BuildError
from imagefs.progress import Progress
from imagefs.reference import Platform
from imagefs.repository.artifact import Descriptor
from imagefs.repository.registry_credentials import find_credentials
from stripefs.errors import ConfigError
from tests.tools.web_server import WebServer


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
    seen = Mock(Progress)
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
    assert sum(call.args[0] for call in seen.advance.call_args_list) == len(text)


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
KNOWN, WRONG = (base64.b64encode(pair).decode() for pair in (b"ann:secret", b"bob:x"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebServer]:
    """A registry that asks for credentials."""
    folder = tmp_path / "registry/v2/team/app/blobs"
    folder.mkdir(parents=True)
    (folder / BLOB.digest).write_bytes(DATA)
    with WebServer(tmp_path / "registry") as server:
        server.credentials = "ann:secret"
        yield server


def blobs(server: WebServer, tmp_path: Path, auths: dict[str, object]) -> Blobs:
    (tmp_path / "auth.json").write_text(json.dumps({"auths": auths}))
    registry = Registry(str(tmp_path / "auth.json"), tls_verify=False, io_timeout=30.0)
    return Blobs(f"docker://{host_of(server)}/team/app:1", registry)


def host_of(server: WebServer) -> str:
    return server.url.removeprefix("http://")


@pytest.mark.parametrize("key", ["", "/team/app"])
def test_a_blob_is_fetched_with_the_credentials_of_its_repository(server: WebServer, tmp_path: Path, key: str) -> None:
    counted: list[int] = []
    auths: dict[str, object] = {host_of(server): {"auth": WRONG}, host_of(server) + key: {"auth": KNOWN}}
    with closing(blobs(server, tmp_path, auths)) as found:
        found.fetch(BLOB, tmp_path / "blob", counted.append)
    assert (tmp_path / "blob").read_bytes() == DATA
    assert sum(counted) == len(DATA)


@pytest.mark.parametrize(
    "answer", ["echo not found; exit 1", "echo nonsense", """echo '{"Username": "<token>", "Secret": "s"}'"""]
)
def test_a_helper_that_knows_nothing_leaves_it_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    program = tmp_path / "docker-credential-vault"
    program.write_text(f"#!/bin/sh\nread -r server\necho asked $1 $server >> {tmp_path}/log\n{answer}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    said = {"credHelpers": {"registry:1": "vault"}, "auths": {"registry:1": {"auth": KNOWN}}}
    (tmp_path / "auth.json").write_text(json.dumps(said))
    assert find_credentials(str(tmp_path / "auth.json"), "registry:1", "team/app").known == KNOWN
    assert (tmp_path / "log").read_text() == "asked get registry:1\n"


def test_what_is_refused_is_left_to_others(server: WebServer, tmp_path: Path) -> None:
    refused: tuple[dict[str, object], ...] = ({}, {host_of(server): {"auth": WRONG}}, {host_of(server): {}})
    for auths in refused:
        with closing(blobs(server, tmp_path, auths)) as found, pytest.raises(RegistryRefused):
            found.fetch(BLOB, tmp_path / "blob", lambda _: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["auth.json", "registry"]
