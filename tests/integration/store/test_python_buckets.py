"""Python programs on a bucket and on a web server: what these can do is what programs can."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

import stripefs
from stripefs.api import engine
from stripefs.fsspec import HttpFileSystem
from tests.support.stores import content
from tests.tools.s3_server import BUCKET, Server
from tests.tools.web_server import WebServer
from tests.unit.imagefs.startup.collecting import collected_anew

DATA = content(10 << 20)


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
    with pytest.raises(OSError, match=r".") as caught:
        fs.rename("step", "next")
    assert caught.value.errno == errno.EOPNOTSUPP
    with pytest.raises(KeyError), fs.open("step/new", "wb") as file:
        _write_and_fail(file)
    fs.rmtree("step")
    assert not fs.exists("step/other")
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
