"""`stripefs cp` as a process of its own that is killed or interrupted, and begun again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

import stripefs
from stripefs.api import engine
from tests.contract.commands import forget_settings, program
from tests.support.python_api import MIB, content, spread
from tests.support.waiting import eventually

DATA = content(40 * MIB)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A source that takes seconds to be read."""
    forget_settings(tmp_path / "home", monkeypatch)
    place = tmp_path / "source"
    place.mkdir()
    fs = stripefs.connect(spread(place), layout="striped", unit="1MiB")
    fs.write_bytes("big", DATA)
    fs.write_bytes("a", b"1")
    fs.write_bytes("b", b"2")
    engine.stop()
    return spread(place, rate="4MB/s", burst="1MiB")


def start(tmp_path: Path, *words: object) -> subprocess.Popen[str]:
    command = [str(program("stripefs")), "cp", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)


def again(*words: object) -> dict[str, int]:
    """The same command, without the limits of the source's hosts."""
    command = [str(program("stripefs")), "cp", "--json", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_local_copy_goes_on(tmp_path: Path, source: str, number: signal.Signals) -> None:
    target = tmp_path / "target"
    partial = target / ".big.stripefs-copy"
    with start(tmp_path, "-r", source, target) as process:
        eventually(lambda: partial.exists() and (target / "b").exists(), "a partial file")
        eventually(lambda: partial.stat().st_size > len(DATA), "a step")
        assert not (target / "big").exists()
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    if number != signal.SIGKILL:
        assert process.returncode == 130
        kept, interrupted = filter(None, err.splitlines())  # click ends the line in which a terminal shows ^C
        assert kept == f"stripefs: what has come of it is kept in {partial}; the same command goes on from there"
        assert interrupted == "stripefs: interrupted"
    else:
        assert (process.returncode, err) == (-9, "")
    found = again("-r", source, target)
    assert (found["files"], found["copied"], found["skipped"], found["skipped_bytes"]) == (3, 1, 2, 2)
    assert found["resumed_bytes"] >= 8 * MIB
    assert found["copied_bytes"] + found["resumed_bytes"] == len(DATA)
    assert sorted(os.listdir(target)) == ["a", "b", "big"]
    assert (target / "big").read_bytes() == DATA


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_copy_to_a_store_that_is_interrupted_leaves_no_lock(
    tmp_path: Path, source: str, number: signal.Signals
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    url = f"file://{target}/copy"
    with start(tmp_path, "-r", source, url) as process:
        eventually(lambda: list(target.glob("copy/.big.stripefs-*-0")), "a part")
        eventually(lambda: (target / "copy" / "b").exists(), "a copy")
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip()) == (130, "stripefs: interrupted")
    assert sorted(os.listdir(target / "copy")) == ["a", "b"]
    found = again("-r", source, url)
    assert (found["copied"], found["skipped"], found["copied_bytes"]) == (1, 2, len(DATA))
    assert sorted(os.listdir(target / "copy")) == ["a", "b", "big"]
    assert stripefs.open(f"{target}/copy/big").read() == DATA
    assert os.listdir(tmp_path / "home/.cache/bootseer/copies") == []


def test_two_at_once(tmp_path: Path, source: str) -> None:
    target = tmp_path / "target"
    target.mkdir()
    one = source.replace("?", "/big?").replace("rate=4MB/s", "rate=1MB/s")
    with start(tmp_path, one, target) as process:
        partial = target / ".big.stripefs-copy"
        eventually(lambda: partial.exists() and partial.stat().st_size > len(DATA), "a step")
        with start(tmp_path, one, target) as other:
            _, err = other.communicate(timeout=60)
        assert other.returncode == 3
        assert "another process copies to the same name; wait until it is done" in err
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert os.listdir(target) == [".big.stripefs-copy"]


@pytest.mark.root
@pytest.mark.mount
def test_a_disk_without_room(tmp_path: Path, source: str) -> None:
    target = tmp_path / "target"
    target.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", target], check=True)
    try:
        (target / "another").write_bytes(bytes(10 * MIB))
        with start(tmp_path, "-rT", source, target) as process:
            _, err = process.communicate(timeout=60)
        assert process.returncode == 3
        assert err.endswith(f"to {target}/big: no room: 40 MiB are to come, 38.0 MiB are free\n")
        os.unlink(target / "another")
        assert again("-rT", source, target)["skipped"] == 2
        assert (target / "big").read_bytes() == DATA
    finally:
        subprocess.run(["umount", target], check=True)
