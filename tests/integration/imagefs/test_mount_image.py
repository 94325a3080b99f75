"""Images mounted by the command, through the daemon, on the real kernel."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from pathlib import Path

import pytest

from stripefs.fuse import kernel
from tests.support.images import nasty, small_image
from tests.support.images.faults import kill_supervisor, sums, umount_here
from tests.tools.imagefs_daemon import Service, built, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]


@pytest.fixture(scope="module")
def store(nasty_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store")
    built(nasty_tree, path, "nasty")
    return path


def test_the_tree_is_the_one_that_was_built(service: Service, store: Path, nasty_tree: Path) -> None:
    target = service.mountpoint()
    service.ok("mount", f"{store}#nasty", str(target))
    assert nasty.differences(target, nasty_tree) == {}
    (image,) = service.status()["images"]
    assert image["mountpoint"] == str(target)
    assert image["plane"] == "erofs"
    service.ok("umount", str(target))
    assert kernel.find_mount(str(target)) is None
    assert service.status()["images"] == []


def test_what_is_written_goes_with_the_mount(host: Service, store: Path, nasty_tree: Path) -> None:
    target = host.mountpoint()
    host.ok("mount", "--rw", f"{store}#nasty", str(target))
    (target / "files/100").write_text("changed")
    (target / "new").write_text("new")
    shutil.rmtree(target / "many")
    assert (target / "files/100").read_text() == "changed"
    host.ok("umount", str(target))
    host.ok("mount", "--rw", f"{store}#nasty", str(target))
    assert nasty.differences(target, nasty_tree) == {}
    host.ok("umount", str(target))
    left = list(Path(host.settings.cache, "upper").iterdir())
    assert left == []
    assert list(Path(host.settings.runtime, "imagefs/mounts").iterdir()) == []


def test_loop_devices_where_the_kernel_takes_no_files(host: Service, new_image: tuple[Path, Path]) -> None:
    source, store = new_image
    target = host.mountpoint()
    host.ok("mount", "--erofs-backing", "loop", f"{store}#t", str(target))
    assert kernel.find_mount(str(target)).source.startswith("/dev/loop")  # type: ignore[union-attr]
    assert sums(target) == sums(source)
    host.ok("umount", str(target))
    eventually(lambda: not small_image.loops(host.folder), "no loop device")


def test_an_image_in_use_is_not_taken_away(host: Service, store: Path) -> None:
    target = host.mountpoint()
    host.ok("mount", f"{store}#nasty", str(target))
    with (target / "files/100").open("rb") as file:
        done = host.run("umount", str(target))
        assert done.returncode == 32
        assert "busy" in done.stderr.lower()
        assert len(done.stderr.splitlines()) == 1
        host.ok("umount", "--lazy", str(target))
        assert kernel.find_mount(str(target)) is None
        assert len(file.read()) == 100


@pytest.mark.slow
def test_one_image_mounted_20_times(service: Service, store: Path, nasty_tree: Path) -> None:
    targets = [service.mountpoint(f"mnt{number}") for number in range(20)]
    under_way = [service.start("mount", f"{store}#nasty", str(target)) for target in targets]
    for process in under_way:
        assert process.communicate(timeout=60) == ("", "")
        assert process.returncode == 0
    for target in targets[:2]:
        assert nasty.differences(target, nasty_tree) == {}
    status = service.status()
    assert len(status["images"]) == 20
    assert len({device["index"] for image in status["images"] for device in image["devices"]}) == 1
    for target in targets:
        umount_here(service, target)
    assert service.status()["images"] == []


@pytest.mark.slow
def test_readers_survive_workers(service: Service, store: Path, nasty_tree: Path) -> None:
    """A worker that is killed while files are read: the reads are answered by the next one."""
    target = service.mountpoint()
    service.ok("mount", f"{store}#nasty", str(target))
    expected = {
        path.relative_to(nasty_tree): hashlib.sha256(path.read_bytes()).digest()
        for path in sorted((nasty_tree / "many").iterdir())
    }
    for name, digest in expected.items():
        if name.name.endswith(("500.py", "1000.py", "2500.py")):
            service.kill_worker()
        assert hashlib.sha256((target / name).read_bytes()).digest() == digest
    status = service.status()
    assert status["restarts"] == 4
    (image,) = status["images"]
    assert image["mountpoint"] == str(target)
    service.ok("umount", str(target))
    assert service.status()["images"] == []


@pytest.mark.slow
def test_a_daemon_that_dies_fails_closed(service: Service, store: Path, nasty_tree: Path) -> None:
    target = service.mountpoint()
    service.ok("mount", f"{store}#nasty", str(target))
    kill_supervisor(service)
    with pytest.raises(OSError, match="Input/output error") as caught:
        (target / "files" / str(3 * nasty.MIB + 5)).read_bytes()
    assert caught.value.errno == errno.EIO
    done = service.run("status")
    assert done.returncode == 32
    assert "no imagefs daemon runs" in done.stderr
    service.ok("umount", str(target))
    service.ok("mount", f"{store}#nasty", str(target))
    assert nasty.differences(target, nasty_tree) == {}


def test_there_is_one_daemon(host: Service) -> None:
    done = host.run("daemon")
    assert done.returncode == 32
    assert "serves" in done.stderr
    assert "already" in done.stderr


@pytest.mark.parametrize(
    ("image", "words"),
    [("#no-such-tag", "no image 'no-such-tag'"), (f"#{'0' * 64}", "no image '000")],
)
def test_what_is_not_there_is_said(host: Service, store: Path, image: str, words: str) -> None:
    done = host.run("mount", f"{store}{image}", str(host.mountpoint()))
    assert done.returncode != 0
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert host.status()["images"] == []


@pytest.mark.slow
def test_a_start_is_recorded_and_the_next_one_replayed(service: Service, store: Path, tmp_path: Path) -> None:
    target = service.mountpoint()
    service.ok("mount", "--workload", "test", f"{store}#nasty", str(target))
    (target / "files" / str(3 * nasty.MIB + 5)).read_bytes()
    service.ok("ready", str(target))
    eventually(lambda: "plan_traces" in service.log(), "the trace")
    service.ok("umount", str(target))
    service.close()

    other = Service(tmp_path / "other")
    other.folder.mkdir()
    try:
        target = other.mountpoint()
        other.ok("mount", "--workload", "test", f"{store}#nasty", str(target))
        eventually(other.plan_is_here, "the plan")
        (target / "files" / str(3 * nasty.MIB + 5)).read_bytes()
        figures = json.loads(other.ok("ready", "--json", str(target)))
        assert figures["start"]["recall"] > 0.9  # the kernel may read a little further ahead than it did
        assert figures["start"]["precision"] > 0.9
        other.ok("umount", str(target))
    finally:
        other.close()


@pytest.mark.slow
def test_a_start_with_everything_here_needs_no_store(service: Service, nasty_tree: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    built(nasty_tree, store, "nasty")
    target = service.mountpoint()
    service.ok("mount", "--background-rate", "0", f"{store}#nasty", str(target))
    nasty.facts(target)
    service.ok("umount", str(target))
    store.rename(tmp_path / "away")
    service.ok("mount", f"{store}#nasty", str(target))
    assert nasty.differences(target, nasty_tree) == {}
    service.ok("umount", str(target))
