"""Files that are read with `cache=`: from local disk the next time, whoever read them first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import stripefs
from stripefs.api import engine
from stripefs.cache import pace
from tests.cache.material import MIB, write
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def _any_disk_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SLOWER", 0.0)  # the source is in memory


def counted(place: Path, folder: Path, name: str) -> int:
    return int(stripefs.connect(str(place), cache=str(folder), cache_size="1GiB").status()["cache"][name])


def test_the_next_process_reads_from_local_disk(place: Path, tmp_path: Path) -> None:
    data = write(place / "model", 12 * MIB + 345)
    folder = tmp_path / "cache"
    for turn in range(2):
        with stripefs.connect(str(place), cache=str(folder), cache_size="1GiB").open("/model") as file:
            assert file.read() == data
        eventually(lambda: not counted(place, folder, "waiting_bytes"), "all of it on disk")
        assert counted(place, folder, "hit_bytes" if turn else "missed_bytes") == len(data)
        engine.stop()


def test_a_source_with_a_cache_and_one_without_are_two(place: Path, tmp_path: Path) -> None:
    data = write(place / "model", 2 * MIB)
    assert stripefs.open(str(place / "model")).read() == data
    assert stripefs.open(str(place / "model"), cache=str(tmp_path / "cache")).read() == data
    assert "cache" not in stripefs.connect(str(place)).status()


def test_a_child_has_a_cache_of_its_own(place: Path, tmp_path: Path) -> None:
    write(place / "model", 4 * MIB)
    program = """
import os, sys, stripefs
file = stripefs.open(sys.argv[1], cache=sys.argv[2])
first = file.read(1 << 20)
pid = os.fork()
if not pid:
    file.seek(0)
    os._exit(0 if file.read(1 << 20) == first and len(file.read()) == 3 << 20 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert len(file.read()) == 3 << 20
"""
    subprocess.run([sys.executable, "-c", program, str(place / "model"), str(tmp_path / "cache")], check=True)
