"""Blocks fetched in the background: all of an image while its first start lasts, the rest of another behind its start,
at the rate that is set."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from imagefs.format.trace import Plan, PlanRun
from imagefs.repository.traces import Traces
from tests.support.images.faults import MIB, make_image, mount_here, sums, umount_here, until_nothing_is_left
from tests.support.images.stores import images_in
from tests.tools.imagefs_daemon import Service, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root, pytest.mark.slow]

RATE = 2 * MIB
SETTINGS = {"background_rate": f"{RATE}B/s"}
SIZE = 8 * MIB


def present(service: Service) -> tuple[int, int]:
    """The blocks of the one image that are here, and all of them."""
    (image,) = service.status()["images"]
    return sum(one["present"] for one in image["devices"]), sum(one["blocks"] for one in image["devices"])


def test_an_image_without_a_plan_comes_whole_while_its_start_lasts(host: Service, new_image: tuple[Path, Path]) -> None:
    source, store = new_image
    target = host.mountpoint()
    mount_here(host, store, target, record=True)
    eventually(lambda: len({*present(host)}) == 1, "all of the image")
    (image,) = host.status()["images"]
    assert (image["start"], image["planned_blocks"]) == ({}, 0)
    assert sums(target) == sums(source)
    umount_here(host, target)


def test_the_rest_of_an_image_with_a_plan_comes_at_the_rate_when_its_start_is_over(
    host: Service, tmp_path: Path
) -> None:
    source, store = make_image(tmp_path / "image", seed=7, size=SIZE, small=0)
    images = images_in(store)
    Traces(images.repository).put_plan(Plan(images.resolve("t"), "default", 1, [PlanRun(1, 3, 2)]))
    target = host.mountpoint()
    mount_here(host, store, target, record=True)
    eventually(lambda: present(host)[0] == 2, "what is planned")
    time.sleep(1.0)
    assert present(host)[0] == 2  # the rest waits
    begun = time.monotonic()
    host.ok("ready", str(target))
    eventually(lambda: len({*present(host)}) == 1, "all of the image")
    # 0.1 s of the rate may come at once, and what is on its way is not here yet.
    assert time.monotonic() - begun > 0.8 * SIZE / RATE
    assert sums(target) == sums(source)
    umount_here(host, target)
    until_nothing_is_left(host)
