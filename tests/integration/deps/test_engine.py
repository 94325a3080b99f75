"""Snapshots that are mounted where they were installed, and shared by the jobs of a host."""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path
from typing import Literal

import pytest

from imagefs.daemon.client import Client
from imagefs.daemon.protocol import Recording
from imagefs.deps.engine import PATIENCE
from stripefs.errors import MountError, StripefsError
from stripefs.fuse import kernel
from stripefs.settings import StoreSettings
from tests.integration.deps.conftest import Job
from tests.support.deps.installed import imported, install, published, snapshots_in, use_here
from tests.support.deps.starting import is_mounted
from tests.support.images.faults import until_nothing_is_left
from tests.tools.imagefs_daemon import Service, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]


@pytest.fixture
def name(target: Path, store: Path) -> str:
    name = published(install(target, seed=zlib.crc32(bytes(target))), store)
    shutil.rmtree(target)
    target.mkdir()
    return name


def until_gone(service: Service, target: Path) -> None:
    eventually(lambda: not is_mounted(target), "the end of the mount")
    until_nothing_is_left(service)


@pytest.mark.parametrize(("plane", "kind"), [("erofs", "erofs"), ("tree", "fuse.imagefs")])
def test_jobs_share_a_mount_until_the_last_ends(
    service: Service,
    store: Path,
    name: str,
    target: Path,
    jobs: list[Job],
    plane: Literal["erofs", "tree"],
    kind: str,
) -> None:
    """In the plane without root, too, which has processes of its own."""
    for job in jobs:
        assert use_here(service, store, name, target, job.pid, plane=plane) is not None
    assert imported(target).stdout == f"7 {1 << 20}\n"
    (mount,) = [mount for mount in kernel.mounts() if mount.path == str(target)]
    assert mount.fstype == kind
    assert {"nosuid", "nodev"} <= set(mount.options.split(","))
    with pytest.raises(OSError, match="Read-only"):
        (target / "more").touch()
    (image,) = service.status()["images"]
    assert image["snapshot"] == name
    assert [user for user, _ in image["users"]] == [job.pid for job in jobs]
    assert f"process {', '.join(str(job.pid) for job in jobs)}\n" in service.ok("status")
    jobs[0].end()
    service.kill_worker()
    jobs[2].kill()
    eventually(lambda: len(service.status()["images"][0]["users"]) == 1, "two users to be gone")
    assert imported(target).returncode == 0
    jobs[1].kill()
    until_gone(service, target)
    assert list(target.iterdir()) == []


def test_kept_until_it_is_unmounted(service: Service, store: Path, name: str, target: Path, jobs: list[Job]) -> None:
    """Another mount that the same job has used is gone by then."""
    use_here(service, store, name, target, jobs[0].pid, kept=True)
    elsewhere = target.with_name("elsewhere")
    other = published(install(target.with_name("other")), store, at=elsewhere)
    elsewhere.mkdir()
    use_here(service, store, other, elsewhere, jobs[0].pid)
    jobs[0].end()
    eventually(lambda: not is_mounted(elsewhere), "the end of the other mount")
    assert is_mounted(target)
    service.ok("umount", str(target))
    until_gone(service, target)


def test_what_is_kept_gives_way_when_nothing_is_open_there(
    service: Service, store: Path, name: str, target: Path, jobs: list[Job]
) -> None:
    """As where process 1 runs the command, so that nobody is known to use it."""
    use_here(service, store, name, target, kept=True)
    install(target.with_name("other"), value=8)
    other = published(target.with_name("other"), store, at=target)
    with (target / "heavy/data.bin").open("rb") as file:
        with pytest.raises(MountError, match="another snapshot"):
            use_here(service, store, other, target, jobs[0].pid)
        assert len(file.read()) == 1 << 20
    assert imported(target).stdout.startswith("7 ")
    use_here(service, store, other, target, jobs[0].pid)
    assert imported(target).stdout.startswith("8 ")
    jobs[0].end()
    until_gone(service, target)


def test_never_at_another_path(
    service: Service, store: Path, name: str, target: Path, tmp_path: Path, jobs: list[Job]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(StripefsError, match=f"made for {target}"):
        use_here(service, store, name, elsewhere, jobs[0].pid)
    assert not is_mounted(elsewhere)


def test_the_store_is_away(service: Service, store: Path, name: str, target: Path, jobs: list[Job]) -> None:
    """A snapshot that is not wholly cached is not mounted; one that is, is."""
    use_here(service, store, name, target, jobs[0].pid)
    jobs[0].end()
    until_gone(service, target)
    away = store.rename(store.with_name("away"))
    with pytest.raises(MountError, match="not all of the snapshot is here"):
        use_here(service, store, name, target, jobs[1].pid)
    assert not is_mounted(target)
    away.rename(store)
    use_here(service, store, name, target, jobs[1].pid)
    assert imported(target).returncode == 0
    Client(service.settings).ready(str(target))


def test_an_image_that_was_not_made_for_it(
    service: Service, store: Path, name: str, target: Path, jobs: list[Job], tmp_path: Path
) -> None:
    """A document that somebody poisoned names another image of the store."""
    other = published(install(tmp_path / "other", value=8), store)
    documents = store / "deps"
    image = snapshots_in(store).load(other).image
    own = snapshots_in(store).load(name).image
    text = (documents / name).read_text().replace(own, image)
    (documents / name).write_text(text)
    with pytest.raises(StripefsError, match="not made for it"):
        use_here(service, store, name, target, jobs[0].pid)
    assert not is_mounted(target)


def test_what_was_made_for_a_host_is_not_for_containers(service: Service, store: Path, name: str) -> None:
    client = Client(service.settings)
    with pytest.raises(StripefsError, match="not for containers"):
        client.attach_layer(StoreSettings(url=str(store)), name, Recording("deps", off=True), timeout=PATIENCE)
    assert service.status()["images"] == []


def test_a_directory_with_files_is_not_hidden(
    service: Service, store: Path, name: str, target: Path, jobs: list[Job]
) -> None:
    (target / "mine").touch()
    with pytest.raises(MountError, match="not empty"):
        use_here(service, store, name, target, jobs[0].pid)
    (target / "mine").unlink()
    until_nothing_is_left(service)
