"""`stripefs cp` and the other commands of names with a bucket on one side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stripefs import logs
from stripefs.api import engine
from stripefs.cli.main import PROGRAM
from tests.contract.commands import forget_settings, said
from tests.support.stores import content
from tests.tools.s3_server import BUCKET, Server
from tests.tools.web_server import WebServer

DATA = content(20 << 20)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    forget_settings(tmp_path / "home", monkeypatch)
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    path = tmp_path / "source"
    (path / "deep").mkdir(parents=True)
    (path / "model").write_bytes(DATA)
    (path / "deep" / "config").write_bytes(b"{}")
    yield path
    engine.stop()


def test_a_tree_to_a_bucket_and_back(
    server: Server, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: object) -> tuple[int, str, str]:
        return said(PROGRAM, capsys, list(map(str, words)))

    url = server.url("new/place/")
    code, _, err = run("cp", "-rp", source / "model", source / "deep", url)
    assert code == 0
    assert err == f"stripefs: s3://{BUCKET}/ keeps no permissions and no times, so -p has no effect there\n"
    assert server.client.get_object(Bucket=BUCKET, Key="new/place/model")["Body"].read() == DATA
    assert run("ls", "-R", url) == (
        0,
        f"s3://{BUCKET}/new/place:\ndeep\nmodel\n\ns3://{BUCKET}/new/place/deep:\nconfig\n",
        "",
    )
    code, out, _ = run("du", "-s", "--json", url)
    assert json.loads(out)["paths"] == [
        {"path": f"s3://{BUCKET}/new/place", "files": 2, "bytes": len(DATA) + 2, "stored_bytes": len(DATA) + 2}
    ]
    assert run("cp", "-r", server.url("new/place"), tmp_path / "back")[0] == 0
    assert (tmp_path / "back" / "model").read_bytes() == DATA
    assert (tmp_path / "back" / "deep" / "config").read_bytes() == b"{}"
    assert run("cp", server.url("new/place/model"), server.url("new/other"))[0] == 0
    assert server.client.get_object(Bucket=BUCKET, Key="new/other")["Body"].read() == DATA
    assert run("rm", "-r", server.url("new/place"), server.url("new/other")) == (0, "", "")
    assert "Contents" not in server.client.list_objects_v2(Bucket=BUCKET, Prefix="new/place/")


def test_from_a_web_server(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    with WebServer(source) as server:
        words = ["cp", f"{server.url}/model", f"{server.url}/none", f"{server.url}/deep/config", f"{tmp_path}/new/"]
        code, _, err = said(PROGRAM, capsys, words)
        assert (code, err.count("\n")) == (3, 1)
        assert err.startswith(f"stripefs: {server.url}/none: ")
        assert (tmp_path / "new" / "model").read_bytes() == DATA
        assert (tmp_path / "new" / "config").read_bytes() == b"{}"
        code, _, err = said(PROGRAM, capsys, ["cp", str(source / "model"), f"{server.url}/copy"])
        assert (code, "cannot be written to" in err) == (3, True)
        engine.stop()
