"""Starts that a first one has taught: what it touched comes to other hosts as one hot device."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imagefs.deps.engine import MountedSnapshot
from stripefs.fuse import kernel
from tests.integration.deps.conftest import Job
from tests.support.deps.installed import published, snapshots_in, use_here
from tests.support.images.faults import until_nothing_is_left
from tests.tools.imagefs_daemon import Service, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]

FILES, SIZE = 120, 70_000


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    target = tmp_path / "deps"
    target.mkdir()
    for number in range(FILES):
        (target / f"{number:03}.bin").write_bytes(content(number))
    yield target
    if kernel.find_mount(str(target)) is not None:
        kernel.unmount(str(target), kernel.MNT_DETACH)


def content(number: int) -> bytes:
    return random.Random(number).randbytes(SIZE)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Service]]:
    """Two, with caches of their own. Reads are not helped by the kernel, so that a record has what a job touched."""
    with contextlib.ExitStack() as stack:
        made = []
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            service = Service(tmp_path / name, background_rate="1GB/s", read_ahead="4KiB")
            made.append(stack.enter_context(contextlib.closing(service)))
        yield made


def started(service: Service, store: Path, name: str, target: Path, job: Job) -> tuple[MountedSnapshot, dict[str, Any]]:
    """A start that touches every second file, in an order of its own; what the daemon says of it."""
    used = use_here(service, store, name, target, job.pid, recorded=True)
    assert used is not None
    for number in random.Random(1).sample(range(0, FILES, 2), FILES // 2):
        assert (target / f"{number:03}.bin").read_bytes() == content(number)
    (image,) = service.status()["images"]
    service.ok("ready", str(target))
    return used, image


def ended(service: Service, target: Path, job: Job) -> None:
    job.end()
    eventually(lambda: kernel.find_mount(str(target)) is None, "the end of the mount")
    until_nothing_is_left(service)


def is_complete(service: Service) -> bool:
    (image,) = service.status()["images"]
    return all(device["complete"] for device in image["devices"])


def test_the_first_start_makes_it_and_the_next_host_has_it(
    tmp_path: Path, target: Path, hosts: list[Service], jobs: list[Job]
) -> None:
    store = tmp_path / "store"
    name, snapshots = published(target, store), snapshots_in(store)
    shutil.rmtree(target)
    target.mkdir()
    base = snapshots.load(name).image

    used, image = started(hosts[0], store, name, target, jobs[0])
    assert used.image == base
    assert [device["tag"] for device in image["devices"]] == ["cold"]
    eventually(lambda: snapshots.load(name).image != base, "a hot device")
    eventually(lambda: is_complete(hosts[0]), "all of it on the first host")
    ended(hosts[0], target, jobs[0])
    hot = snapshots.load(name).image
    assert snapshots.images.manifest(hot).base == base

    used, image = started(hosts[1], store, name, target, jobs[1])
    assert used.image == hot
    assert [device["tag"] for device in image["devices"]] == ["cold", "hot"]
    assert image["planned_blocks"] >= image["devices"][1]["blocks"]
    assert image["devices"][0]["present"] < image["devices"][0]["blocks"] // 2
    eventually(lambda: is_complete(hosts[1]), "all of it on the second host")
    for number in range(FILES):
        assert (target / f"{number:03}.bin").read_bytes() == content(number)
    ended(hosts[1], target, jobs[1])
