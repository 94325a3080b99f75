"""The read-ahead of lazy images, set where sysfs has the file systems that were mounted."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagefs.plane.erofs import READ_AHEAD_KIB, lazy_read_ahead
from stripefs.fuse import kernel


@pytest.fixture
def bdi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kernel, "BDI", str(tmp_path / "bdi"))
    for name in ("0:41", "erofs-7"):
        appear(tmp_path / "bdi", name)
    return tmp_path / "bdi"


def appear(bdi: Path, name: str) -> None:
    (bdi / name).mkdir(parents=True)
    (bdi / name / "read_ahead_kb").write_text("128")


def test_what_is_mounted_meanwhile_reads_ahead_less(bdi: Path) -> None:
    with lazy_read_ahead():
        appear(bdi, "erofs-8")
        appear(bdi, "0:42")
    found = {folder.name: (folder / "read_ahead_kb").read_text() for folder in bdi.iterdir()}
    assert found == {"0:41": "128", "0:42": "128", "erofs-7": "128", "erofs-8": str(READ_AHEAD_KIB)}


def test_images_are_mounted_without_sysfs(bdi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lazy_read_ahead():
        (bdi / "erofs-9").mkdir()  # it went before anybody could write
    monkeypatch.setattr(kernel, "BDI", str(bdi / "nowhere"))
    with lazy_read_ahead():
        pass
