"""Ten mounts through the installed commands, each the shortest way through one promise of docs/index.md."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from stripefs.fuse import kernel
from tests.tools.command import Place
from tests.tools.containers import fill
from tests.tools.imagefs_daemon import Service, built
from tests.tools.mounts import drop_cache

pytestmark = [pytest.mark.mount, pytest.mark.root]

MIB = 1 << 20
DATA = random.Random(1).randbytes(5 * MIB + 123)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "model.bin").write_bytes(DATA)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with an image that has busybox in it, tagged t."""
    fill(tmp_path / "root")
    built(tmp_path / "root", tmp_path / "store", "t", {"config": {"Cmd": ["sh", "-c", "echo hello"]}})
    return tmp_path / "store"


def test_a_file_is_read(place: Place, source: Path) -> None:
    live = place.mount(f"file://{source}")
    assert (live.path / "model.bin").read_bytes() == DATA
    live.umount()
    assert not live.in_table()


def test_a_worker_that_is_killed_loses_nothing(place: Place, source: Path) -> None:
    live = place.mount(f"file://{source}")
    with open(live.path / "model.bin", "rb") as file:
        assert file.read(MIB) == DATA[:MIB]
        live.kill_worker()
        assert file.read() == DATA[MIB:]
    place.forgive("the worker ended with SIGKILL")


@pytest.mark.parametrize("layout", ["concat", "striped"])
def test_a_file_is_written(place: Place, source: Path, layout: str) -> None:
    live = place.mount(f"file://{source}", "--rw", "--layout", layout, "--unit", "1MiB")
    with open(live.path / "next.bin", "wb") as file:
        file.write(DATA)
        assert not (source / "next.bin").exists()
    assert (live.path / "next.bin").read_bytes() == DATA
    os.replace(live.path / "next.bin", live.path / "model.bin")
    assert (live.path / "model.bin").read_bytes() == DATA


def test_a_file_is_changed_in_place_through_staging(place: Place, source: Path, tmp_path: Path) -> None:
    (tmp_path / "staging").mkdir()
    live = place.mount(f"file://{source}", "--rw", "--staging", tmp_path / "staging")
    with open(live.path / "model.bin", "r+b") as file:
        file.seek(MIB)
        file.write(b"changed")
    assert (source / "model.bin").read_bytes() == DATA[:MIB] + b"changed" + DATA[MIB + 7 :]


def test_a_file_is_read_through_the_cache(place: Place, source: Path, tmp_path: Path) -> None:
    live = place.mount(f"file://{source}", "--cache", tmp_path / "cache")
    assert live.told_status()["cache"]["directory"] == str(tmp_path / "cache")
    assert (live.path / "model.bin").read_bytes() == DATA
    drop_cache(live.path / "model.bin")
    assert (live.path / "model.bin").read_bytes() == DATA


def test_an_image_is_mounted(service: Service, store: Path, tmp_path: Path) -> None:
    target = service.mountpoint()
    service.ok("mount", f"{store}#t", str(target))
    assert (target / "srv/data").read_bytes() == (tmp_path / "root/srv/data").read_bytes()
    service.ok("umount", str(target))
    assert kernel.find_mount(str(target)) is None


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_container_runs(service: Service, store: Path, runtime: str) -> None:
    assert service.ok("run", "--oci-runtime", runtime, f"{store}#t") == "hello\n"


def test_what_a_start_installs_is_mounted_by_the_next(service: Service, tmp_path: Path) -> None:
    (tmp_path / "script").write_text('mkdir -p "$1" && echo installed > "$1/package.txt"\n')
    target = tmp_path / "deps"
    arguments = ("--target", str(target), "--input", str(tmp_path / "script"))
    install = ("--", "sh", str(tmp_path / "script"), str(target))
    service.environment["IMAGEFS_STORE"] = str(tmp_path / "store")
    service.ok("deps", "run", "--wait", *arguments, *install)
    for path in target.iterdir():
        path.unlink()
    target.rmdir()
    service.ok("deps", "run", "--keep", *arguments, *install)
    assert kernel.find_mount(str(target)) is not None
    assert (target / "package.txt").read_text() == "installed\n"
