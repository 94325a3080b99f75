"""`stripefs cp` and the other commands of names on a real HDFS."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from hdfs_native import Client

import stripefs
from tests.contract.commands import program
from tests.support.python_api import content
from tests.support.waiting import eventually
from tests.tools.hdfs import HdfsInstance
from tests.tools.mounts import MIB

pytestmark = [pytest.mark.cluster, pytest.mark.mount, pytest.mark.root]

DATA = content(16 * MIB + 5)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "here" / "source"
    (path / "deep").mkdir(parents=True)
    (path / "model").write_bytes(DATA)
    for number in range(10):
        (path / "deep" / f"small{number}").write_bytes(b"x" * number)
    os.utime(path / "model", ns=(5, 1_500_000_000_123_000_000))
    os.chmod(path / "model", 0o640)
    return path


def stripefs_command(home: Path, *words: object) -> list[str]:
    return ["env", f"HOME={home}", str(program("stripefs")), *map(str, words)]


def run(home: Path, *words: object, code: int = 0) -> str:
    done = subprocess.run(stripefs_command(home, *words), capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_there_and_back(hdfs: HdfsInstance, source: Path, tmp_path: Path) -> None:
    url = f"{hdfs.url}/copies"
    stripefs.connect(hdfs.url).mkdir("copies")
    run(tmp_path, "cp", "-rp", "--layout", "concat", "--root", url, source, f"{url}/")
    read = Client(hdfs.url)
    status = read.get_file_info("/copies/source/model")
    assert (status.modification_time, status.permission) == (1_500_000_000_123, 0o640)
    assert bytes(read.read("/copies/source/model").read_range(0, status.length)) == DATA
    run(tmp_path, "cp", "-r", f"{url}/source", tmp_path / "back")
    assert files(tmp_path / "back") == files(source)
    run(tmp_path, "cp", "-r", f"{url}/source", f"{url}/other")
    done = subprocess.run(stripefs_command(tmp_path, "cat", f"{url}/other/model"), capture_output=True, check=True)
    assert done.stdout == DATA
    assert run(tmp_path, "ls", f"{url}/other") == "deep\nmodel\n"
    *_, total = json.loads(run(tmp_path, "du", "--json", f"{url}/source"))["paths"]
    assert (total["files"], total["bytes"]) == (11, len(DATA) + 45)
    assert 0 <= total["stored_bytes"] - total["bytes"] < MIB
    run(tmp_path, "rm", "-r", "--grace", "0s", url)
    assert not stripefs.connect(hdfs.url).exists("copies")


def test_one_that_is_interrupted_leaves_nothing(hdfs: HdfsInstance, source: Path, tmp_path: Path) -> None:
    fs = stripefs.connect(f"{hdfs.url}/copies-interrupted")
    stripefs.connect(hdfs.url).mkdir("copies-interrupted")
    (source / "large").write_bytes(DATA * 20)
    url = f"{hdfs.url}/copies-interrupted/large"
    with subprocess.Popen(stripefs_command(tmp_path, "cp", source / "large", url), stderr=subprocess.PIPE) as process:
        listed = Client(hdfs.url)
        eventually(lambda: len(list(listed.list_status("/copies-interrupted"))) > 1, "a lock and a part")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip()) == (130, b"stripefs: interrupted")
    assert list(Client(hdfs.url).list_status("/copies-interrupted")) == []
    assert fs.listdir() == []
