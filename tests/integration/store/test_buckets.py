"""`stripefs cp`, other commands and Python programs on a bucket and on a web server."""

from __future__ import annotations

import errno
import json
import logging
from pathlib import Path

import pytest

import stripefs
from stripefs.api import engine
from stripefs.fsspec import HttpFileSystem, StripefsFileSystem
from tests.support.refusals import refused
from tests.support.stores import content
from tests.tools.s3_server import BUCKET, Server
from tests.tools.web_server import WebServer
from tests.unit.imagefs.startup.collecting import collected_anew
from tests.unit.stripefs.cli.conftest import Run, _surroundings, run

__all__ = ["_surroundings", "run"]

DATA = content(20 << 20)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    (path / "deep").mkdir(parents=True)
    (path / "model").write_bytes(DATA)
    (path / "deep" / "config").write_bytes(b"{}")
    return path


def test_a_tree_to_a_bucket_and_back(server: Server, source: Path, tmp_path: Path, run: Run) -> None:
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


def test_from_a_web_server(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    with WebServer(source) as server:
        sources = (f"{server.url}/{name}" for name in ("model", "none", "deep/config"))
        code, _, err = run("cp", *sources, f"{tmp_path}/new/")
        assert (code, err.count("\n")) == (3, 1)
        assert err.startswith(f"stripefs: {server.url}/none: ")
        assert (tmp_path / "new" / "model").read_bytes() == DATA
        assert (tmp_path / "new" / "config").read_bytes() == b"{}"
        code, _, err = run("cp", source / "model", f"{server.url}/copy")
        assert (code, "cannot be written to" in err) == (3, True)
        engine.stop()


def test_a_bucket(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    url = server.url("run/step/model")
    with pytest.raises(FileNotFoundError):
        stripefs.open(url, "wb")
    stripefs.connect(server.url("")).mkdir("run/step", parents=True)
    with stripefs.open(url, "wb") as file:
        file.write(DATA)
    with stripefs.open(url) as file:
        assert file.read_ranges([(5, 10), (9 << 20, 100)]) == [DATA[5:15], DATA[9 << 20 :][:100]]
        assert file.read() == DATA
    assert server.client.get_object(Bucket=BUCKET, Key="run/step/model")["Body"].read() == DATA
    fs = stripefs.connect(server.url("run"))
    fs.replace("step/model", "step/other")
    assert [entry.name for entry in fs.scandir("step")] == ["other"]
    with refused(errno.EOPNOTSUPP):
        fs.rename("step", "next")
    with pytest.raises(KeyError), fs.open("step/new", "wb") as file:
        _write_and_fail(file)
    spec = StripefsFileSystem(root=server.url("run"))
    spec.mv("step", "moved", recursive=True)  # file by file
    assert spec.find("") == ["moved/other"]
    fs.rmtree("moved")
    assert not fs.exists("moved/other")
    with pytest.raises(FileNotFoundError):
        stripefs.open(url)


def _write_and_fail(file: stripefs.WriteFile) -> None:
    file.write(DATA)
    raise KeyError


def test_a_bucket_holds_what_many_passes_of_startup_collect_brought(tmp_path: Path, server: Server) -> None:
    collected_anew(tmp_path, server.url("events"))


def test_a_web_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    (tmp_path / "file").write_bytes(DATA)
    with WebServer(tmp_path) as server:
        with stripefs.open(f"{server.url}/file") as file:
            assert file.read() == DATA
        fs = HttpFileSystem(skip_instance_cache=True)
        path = f"{server.url.removeprefix('http://')}/file"
        assert fs.info(path)["size"] == len(DATA)
        assert fs.cat_ranges([path, path], [0, 5], [5, 10]) == [DATA[:5], DATA[5:10]]
        with pytest.raises(FileNotFoundError):
            fs.open(f"stripefs+{server.url}/no")
        with pytest.raises(OSError, match="cannot be written") as caught:
            stripefs.open(f"{server.url}/file", "wb")
        assert caught.value.errno == errno.EOPNOTSUPP
        engine.stop()
