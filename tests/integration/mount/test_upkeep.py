"""Commands with paths inside mounts: gc, recover and info after writers that were killed; cp, ls, cat, rm and du, which
go to the source, if the mount may. The pool of a directory above."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stripefs import logs
from stripefs.api import engine
from stripefs.cli.main import PROGRAM
from tests.support.leftovers import age
from tests.support.python_api import content
from tests.support.refusals import refused
from tests.support.written_mounts import writable
from tests.tools.mounts import MIB, REPLACED, Mounts, eventually, reading

pytestmark = pytest.mark.mount

DATA = content(20 * MIB)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(logs, "configure", lambda *_: None)  # which would hold for the tests that follow as well
    yield
    engine.stop()


def run(*words: object) -> int:
    return PROGRAM.main(list(map(str, words)))


_WRITER = """
import os, sys, time
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
for _ in range(12):
    os.write(file, b"n" * (1 << 20))
os.fsync(file)
os.write(file, b"x" * (1 << 20))
print("durable", flush=True)
time.sleep(600)
"""


def test_a_writer_that_was_killed(mounts: Mounts, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(code: int, *arguments: object) -> Any:
        assert run(*arguments, "--json") == code
        out = capsys.readouterr().out
        return json.loads(out) if out else None

    mounts.forgive("its writer was killed")
    mounted = mounts.start(writable(mounts, layout="striped")).wait_ready()
    m, s = mounted.path, mounts.source
    (m / "run").mkdir()
    (m / "run/model").write_bytes(b"o" * 10 * MIB)
    info = answer(0, "info", m / "run/model")
    assert (info["layout"], info["length"], info["path"]) == ("striped", 10 * MIB, "/run/model")

    with reading([sys.executable, "-c", _WRITER, str(m / "run/model")]) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "durable\n"
        assert answer(0, "gc", m, "--force")["removed"] == 0
        assert answer(3, "recover", m / "run/model") is None  # somebody writes it
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        eventually(lambda: mounted.status()["tree"]["open_for_writing"] == 0, "the end of the writer")

    assert (m / "run/model").read_bytes() == b"o" * 10 * MIB
    eventually(lambda: not (s / "run/.model.stripefs-lock").exists(), "the end of the lock")
    found = answer(0, "gc", m)
    assert (found["removed"], found["recoverable"], found["trouble"]) == (0, ["/run/model"], [])
    assert answer(3, "recover", m / "run/model") is None  # the old version stands there
    assert answer(0, "recover", m / "run/model", "--to", "kept")["bytes"] == 12 * MIB
    assert eventually(lambda: (m / "run/kept").exists(), "the recovered file")
    assert (m / "run/kept").read_bytes() == b"n" * 12 * MIB

    assert mounted.stop() == 0


def test_a_directory_in_which_a_writer_died_can_be_removed(mounts: Mounts) -> None:
    """As soon as nobody can be at work there any more, and not before."""
    mounts.forgive(REPLACED, "was being written when the worker ended", "looks empty and stays")
    mounted = mounts.start(writable(mounts, layout="plain")).wait_ready()
    m, s = mounted.path, mounts.source
    (m / "run").mkdir()
    os.setxattr(m / "run", "user.stripefs.layout", b"plain")
    writer = os.open(m / "run/model", os.O_WRONLY | os.O_CREAT)
    for _ in range(12):
        os.write(writer, b"x" * MIB)
    eventually(lambda: len(os.listdir(s / "run")) == 3, "the lock, the layout and what is written")
    mounted.kill_worker()
    with refused(errno.EIO):
        os.close(writer)
    assert os.listdir(m / "run") == []
    with refused(errno.ENOTEMPTY):
        (m / "run").rmdir()
    assert len(os.listdir(s / "run")) == 3
    assert "stripefs gc" in mounted.log_text()
    age(s, 61)
    (m / "run").rmdir()
    assert not (s / "run").exists()
    assert mounted.stop() == 0


# -- pools


def _parts(source: Path) -> int:
    return sum(path.is_file() for path in (source / ".stripefs").rglob("*"))


def test_files_of_a_trusted_pool(mounts: Mounts) -> None:
    """They are read, renamed, replaced and unlinked, and never added to; without trust they fail with a clear line."""
    mounts.forgive("--trust-pool", "only written from start to end", "is not published")
    s, inside = mounts.source, mounts.url() + "/run1"
    above = mounts.start(writable(mounts, layout="striped")).wait_ready()
    (above.path / "run1").mkdir()
    for name in ("model", "other"):
        (above.path / "run1" / name).write_bytes(DATA)
    parts = _parts(s)

    plain = mounts.start(writable(mounts, inside, layout="striped")).wait_ready()
    assert (plain.path / "model").stat().st_size == len(DATA)
    with refused(errno.EIO):
        (plain.path / "model").read_bytes()
    assert f"it was written with the pool {s}/.stripefs; see --trust-pool" in plain.log_text()
    assert plain.stop() == 0

    mounted = mounts.start(writable(mounts, inside, layout="striped", trust_pool=(f"{s}/.stripefs",))).wait_ready()
    m = mounted.path
    assert (m / "model").read_bytes() == DATA
    writer = os.open(m / "model", os.O_WRONLY | os.O_APPEND)
    with refused(errno.EOPNOTSUPP):
        os.write(writer, b"more")
    with contextlib.suppress(OSError):
        os.close(writer)
    os.rename(m / "model", m / "moved")
    assert (m / "moved").read_bytes() == DATA
    (m / "other").write_bytes(DATA[::-1])
    assert (m / "other").read_bytes() == DATA[::-1]
    (m / "moved").unlink()
    assert mounted.stop() == 0
    assert _parts(s) == parts  # another mount's to remove
    assert (above.path / "run1/other").exists()
    assert above.stop() == 0


# -- names


def test_names_inside_a_mount(mounts: Mounts, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").write_bytes(DATA)
    (tmp_path / "note").write_text("some words")
    mounted = mounts.mount(rw=True, attr_timeout=0.0).path
    (mounted / "folder").mkdir()
    assert run("cp", "--layout", "striped", tmp_path / "model", tmp_path / "note", mounted / "folder") == 0
    assert (mounted / "folder" / "model").read_bytes() == DATA
    assert (mounts.source / "folder" / "model").stat().st_size < 65536
    assert (mounts.source / ".stripefs").is_dir()
    assert run("cp", mounted / "folder" / "model", tmp_path / "back") == 0
    assert (tmp_path / "back").read_bytes() == DATA
    capfd.readouterr()
    assert run("ls", mounted / "folder") == 0
    assert run("cat", mounted / "folder" / "note") == 0
    assert run("du", "-sh", mounted) == 0
    assert capfd.readouterr().out.split()[:3] == ["model", "note", "some"]
    assert run("rm", "--grace", "0s", mounted / "folder" / "model") == 0
    assert os.listdir(mounted / "folder") == ["note"]
    assert run("rm", "-r", mounted / "folder", mounted / "folder" / "none") == 3
    assert os.listdir(mounted) == []
    assert run("rm", "-r", mounted) == 2


def test_a_mount_that_is_read_only_is_respected(
    mounts: Mounts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (mounts.source / "file").write_bytes(b"1")
    (tmp_path / "model").write_bytes(DATA)
    mounted = mounts.mount().path
    for words in (["cp", tmp_path / "model", mounted / "new"], ["rm", mounted / "file"], ["rm", "-rf", mounted / "no"]):
        assert run(*words) == 2
        assert "is on a mount that is read-only; name its store, or mount it with --rw" in capsys.readouterr().err
    assert run("cp", mounted / "file", tmp_path / "copy") == 0
    assert os.listdir(mounts.source) == ["file"]
