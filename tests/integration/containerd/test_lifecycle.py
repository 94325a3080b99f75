"""Services that end, restart and are killed under running containers; images that go; machines that start again."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import grpc
import pytest

from tests.integration.containerd.conftest import WAITS, lazy
from tests.support.images.layers import directory, file, layer
from tests.support.waiting import eventually
from tests.tools.containerd.node import Node, Registry

SIZE = 8 << 20


@pytest.fixture(scope="module")
def image(node: Node, registry: Registry, store: Path) -> str:
    """A lazy image of a few files of 1 MiB, pulled."""
    content = random.Random(11)
    files = [file(f"data/{number}", content.randbytes(1 << 20)) for number in range(SIZE >> 20)]
    return lazy(node, registry, store, "life", layer(directory("data"), *files))[0]


SUMS = ("sh", "-c", "cat /data/* | md5sum")


def sums(node: Node, container: str) -> str:
    code, text = node.cri.exec(container, *SUMS)
    assert code == 0, text
    return text


def test_a_snapshotter_that_is_killed_under_a_running_container(node: Node, image: str, pod: str) -> None:
    running = node.cri.run(pod, image, WAITS)
    node.stop("snapshotter", signal.SIGKILL)
    wanted = sums(node, running)
    node.start_snapshotter()
    assert sums(node, node.cri.run(pod, image, WAITS)) == wanted
    before = node.snapshots()
    node.cri.remove_container(running)
    assert len(node.snapshots()) == len(before) - 1


def test_a_containerd_that_is_restarted(node: Node, image: str, pod: str) -> None:
    running = node.cri.run(pod, image, WAITS)
    node.stop("containerd")
    node.start_containerd()
    wanted = sums(node, running)
    assert sums(node, node.cri.run(pod, image, WAITS)) == wanted


def test_a_daemon_that_ends_under_a_running_container(node: Node, registry: Registry, store: Path, pod: str) -> None:
    """The daemon that follows serves the bytes that are not read yet."""
    content = random.Random(9).randbytes(1 << 20)
    image, _ = lazy(node, registry, store, "daemon", layer(directory("data"), file("data/a", content)))
    running = node.cri.run(pod, image, WAITS)
    node.stop("daemon", signal.SIGKILL)
    node.start_daemon()
    wanted = sums(node, node.cri.run(pod, image, WAITS))
    assert sums(node, running) == wanted


def test_a_start_is_recorded_for_the_workload_that_an_annotation_names(
    node: Node, registry: Registry, store: Path, pod: str
) -> None:
    content = layer(directory("data"), file("data/a", os.urandom(1 << 20)))
    image, digest = lazy(node, registry, store, "workload", content)
    annotations = {"containerd.io/snapshot/imagefs.workload": "training"}
    container = node.cri.run(pod, image, WAITS, annotations=annotations)
    sums(node, container)
    eventually(lambda: "training" in node.imagefs("trace", "show", f"{store}#{digest}"), "the trace")


def test_a_machine_that_starts_again(node: Node, image: str) -> None:
    """The run folders are empty then and nothing is mounted; what containers wrote is there still."""
    command = ("sh", "-c", "echo >>/note; wc -l </note; cat /data/* | md5sum")
    first = node.ctr("run", "--snapshotter", "imagefs", image, "reboot", *command).stdout.split()
    node.reboot()
    again = node.ctr("tasks", "start", "reboot").stdout.split()
    assert (first[0], again) == ("1", ["2", *first[1:]])
    node.ctr("containers", "rm", "reboot")


def test_a_store_that_lost_the_image_after_it_was_pulled(node: Node, registry: Registry, store: Path) -> None:
    """Its layers come from the registry then."""
    content = layer(directory("data"), file("data/a", b"from the registry"))
    image, digest = lazy(node, registry, store, "lost", content)
    node.imagefs("rm", f"{store}#{digest}")
    node.forget_answers()
    assert node.run(image, "lost", "cat", "/data/a") == "from the registry"


def test_a_full_disk(node: Node, registry: Registry, image: str, pod: str) -> None:
    """New work is refused, and what runs goes on."""
    running = node.cri.run(pod, image, WAITS)
    wanted = sums(node, running)
    with node.full_disk(), pytest.raises(grpc.RpcError, match=r"no space left|full"):
        node.cri.run(pod, image, WAITS)
    assert sums(node, running) == wanted
    assert sums(node, node.cri.run(pod, image, WAITS)) == wanted
