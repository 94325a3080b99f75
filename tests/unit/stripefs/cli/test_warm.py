"""`stripefs warm`, from a local directory as the store into a real folder."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

import stripefs
from stripefs.cache import policy, writeback
from stripefs.cache.cache_format import DATA_AT
from stripefs.cache.segment import CacheSegment
from tests.support.caches import AGE, MIB, write
from tests.support.python_api import content
from tests.unit.stripefs.cli.conftest import Run


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    (path / "step-1" / "deep").mkdir(parents=True)
    for number, (name, size) in enumerate({"a": 12 * MIB + 5, "b": 2 * MIB, "deep/c": 3 * MIB, "small": 100}.items()):
        write(path / "step-1" / name, size, seed=number)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def warm(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(policy, "SLOWER", 0.0)  # a store that is in memory is no measure
    return lambda *words: run("warm", "--cache", folder, "--cache-size", "64GiB", *words)


def warmed(warm: Run, *words: str) -> dict[str, object]:
    code, out, _ = warm("--json", *words)
    assert code == 0
    (told,) = json.loads(out)["paths"]
    return {name: told[name] for name in ("files", "bytes", "here_before", "fetched", "whole", "missing", "trouble")}


def test_a_directory_is_brought_here_once(warm: Run, source: Path) -> None:
    size = 17 * MIB + 5 + 100
    done = {"files": 4, "bytes": size, "whole": True, "missing": [], "trouble": []}
    assert warmed(warm, str(source)) == {**done, "here_before": 0, "fetched": size - 100}
    assert warmed(warm, str(source)) == {**done, "here_before": size - 100, "fetched": 0}


def test_a_file_is_gone_on_with_where_it_was_left(warm: Run, source: Path, folder: Path) -> None:
    path = str(source / "step-1" / "a")
    assert warmed(warm, path)["fetched"] == 12 * MIB + 5
    (segment,) = folder.glob("stripefs-1/versions/*/*/000000")
    with segment.open("r+b") as file:
        file.seek(64 + 16 * 4)
        file.write(bytes(16 * 3))  # three blocks are not here
    found = warmed(warm, path)
    assert (found["here_before"], found["fetched"]) == (9 * MIB + 5, 3 * MIB)
    assert segment.stat().st_size > DATA_AT


@pytest.mark.parametrize("path", ["step-2/deep/model", "step-2", ""])
def test_striped_files_are_found_with_the_pool_above_them(warm: Run, source: Path, path: str) -> None:
    fs = stripefs.connect(str(source), layout="striped", unit="1MiB")
    fs.mkdir("step-2/deep", parents=True)
    fs.write_bytes("step-2/deep/model", content(20 * MIB))
    found = warmed(warm, f"file://{source}/{path}".rstrip("/"))
    assert (found["files"], found["whole"], found["trouble"]) == (1 if path else 5, True, [])


def test_what_does_not_fit_is_named(warm: Run, source: Path) -> None:
    code, out, err = warm("--wait", "--cache-size", "64MiB", str(source))
    assert code == 0  # 17 MiB do
    assert "4 files, 17.0 MiB" in out
    write(source / "large", 80 * MIB, seed=9)
    code, out, err = warm("--wait", "--cache-size", "64MiB", str(source / "large"))
    assert (code, out) == (3, "")
    assert "80 MiB do not fit into the cache, which can hold 64 MiB; nothing was fetched" in err
    assert sum(path.stat().st_blocks * 512 for path in (source.parent / "cache").rglob("*")) < 32 * MIB


def test_in_the_background(warm: Run, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stripefs.fuse.control.runtime_directory", lambda: tmp_path / "run")
    code, out, _ = warm("--rate", "1GB/s", str(source))
    assert code == 0
    assert "warming in the background: process" in out
    log = tmp_path / "run" / "warm.log"
    _, status = os.waitpid(int(out.split("process ")[1].split(",")[0]), 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert "4 files, 17.0 MiB" in log.read_text()
    assert warmed(warm, str(source))["fetched"] == 0


def test_a_disk_slower_than_the_store_is_waited_for(warm: Run, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although what waits for it takes longer than a reader of a mount would have others wait."""
    whole = CacheSegment.write

    def slow(segment: CacheSegment, blocks: range, data: memoryview) -> None:
        time.sleep(0.1)
        whole(segment, blocks, data)

    monkeypatch.setattr(CacheSegment, "write", slow)
    monkeypatch.setattr(writeback, "LONGEST_WAIT", 0.05)
    with (source / "large").open("wb") as file:
        file.truncate(192 * MIB)
    os.utime(source / "large", (AGE, AGE))
    found = warmed(warm, "--memory", "128MiB", str(source / "large"))
    assert (found["whole"], found["fetched"]) == (True, 192 * MIB)
