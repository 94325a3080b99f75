"""`stripefs cp`, `ls`, `cat`, `rm` and `du` with paths inside mounts: they go to the source, if the mount may."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stripefs import logs
from stripefs.api import engine
from stripefs.cli.main import PROGRAM
from tests.support.python_api import content
from tests.tools.mounts import MIB, Mounts

pytestmark = pytest.mark.mount

DATA = content(20 * MIB)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(logs, "configure", lambda *_: None)  # which would hold for the tests that follow as well
    yield
    engine.stop()


def run(*words: object) -> int:
    return PROGRAM.main(list(map(str, words)))


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
