"""Services that end, restart and are killed under running containers; images that go; machines that start again."""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from stripefs.fuse import kernel
from tests.integration.containerd.conftest import base
from tests.support.images.layers import directory, file, layer
from tests.support.waiting import eventually
from tests.tools.containerd.node import Node, Registry

SIZE = 8 << 20


@pytest.fixture(scope="module")
def image(node: Node, registry: Registry, store: Path) -> str:
    """A lazy image of a few files of 1 MiB, pulled."""
    content = random.Random(11)
    files = [file(f"data/{number}", content.randbytes(1 << 20)) for number in range(SIZE >> 20)]
    reference = registry.push("life:1", [base(), layer(directory("data"), *files)])
    node.imagefs("build", f"docker://{reference}", str(store), "--no-src-tls-verify")
    node.cri.pull(reference)
    return reference


@pytest.fixture
def pod(node: Node) -> Iterator[str]:
    yield node.cri.pod()
    node.cri.remove_pods()


SUMS = ("sh", "-c", "cat /data/* | md5sum")
WAITS = ("sleep", "100000")


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


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_daemon_that_ends_under_a_running_container(
    node: Node, registry: Registry, store: Path, pod: str, how: signal.Signals
) -> None:
    """The daemon that follows serves the bytes that are not read yet."""
    content = random.Random(how.value).randbytes(4 << 20)
    image = registry.push(f"daemon:{how.value}", [base(), layer(directory("data"), file("data/a", content))])
    node.imagefs("build", f"docker://{image}", str(store), "--no-src-tls-verify")
    node.cri.pull(image)
    running = node.cri.run(pod, image, WAITS)
    node.stop("daemon", how)
    node.start_daemon()
    wanted = sums(node, node.cri.run(pod, image, WAITS))
    assert sums(node, running) == wanted


def test_a_worker_of_the_daemon_is_killed_while_containers_start(
    node: Node, registry: Registry, store: Path, pod: str
) -> None:
    """Each image is new, so that the next worker answers the kernel: three that answer nothing end the daemon."""
    for number in range(3):
        content = random.Random(number).randbytes(300_000)
        image = registry.push(f"killed:{number}", [base(), layer(directory("data"), file("data/a", content))])
        node.imagefs("build", f"docker://{image}", str(store), "--no-src-tls-verify")
        node.cri.pull(image)
        container = node.cri.create(pod, image, WAITS)
        os.kill(node.worker(), signal.SIGKILL)
        node.cri.start(container)
        assert sums(node, container).split()[0] == hashlib.md5(content).hexdigest()


def test_the_registry_and_the_store_are_away(node: Node, image: str, store: Path, registry: Registry, pod: str) -> None:
    """A container whose blocks are here starts without either."""
    wanted = sums(node, node.cri.run(pod, image, WAITS))
    away = store.with_name("away")
    store.rename(away)
    registry.close()
    try:
        assert sums(node, node.cri.run(pod, image, WAITS)) == wanted
    finally:
        registry.start()
        away.rename(store)


def test_twenty_containers_at_once(node: Node, image: str, pod: str) -> None:
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        containers = list(pool.map(lambda _: node.cri.run(pod, image, WAITS), range(20)))
        assert len(set(pool.map(lambda one: sums(node, one), containers))) == 1
    mounts = [mount for mount in kernel.mounts() if Path(mount.path).is_relative_to(node.folder / "run")]
    assert len([mount for mount in mounts if mount.fstype == "erofs"]) == len(set(node.pool()))


def test_an_image_that_is_removed_leaves_nothing(node: Node, registry: Registry, store: Path) -> None:
    before, directories = set(node.snapshots()), set(os.listdir(node.root / "snapshots"))
    image = registry.push("removed:1", [base(), layer(file("a", b"1")), layer(file("b", b"2"))])
    node.imagefs("build", f"docker://{image}", str(store), "--no-src-tls-verify")
    node.cri.pull(image)
    node.run(image, "removed", "cat", "/a")
    assert set(node.snapshots()) > before
    node.remove_image(image)
    assert set(node.snapshots()) == before
    eventually(lambda: set(os.listdir(node.root / "snapshots")) <= directories, "the end of the directories")


def test_a_container_that_touches_everything_at_once(node: Node, registry: Registry, store: Path) -> None:
    files = [file(f"many/{number}", os.urandom(3000)) for number in range(2000)]
    image = registry.push("everything:1", [base(), layer(directory("many"), *files)])
    node.imagefs("build", f"docker://{image}", str(store), "--no-src-tls-verify")
    node.cri.pull(image)
    assert node.run(image, "everything", "sh", "-c", "cat /many/* | wc -c") == "6000000\n"


def test_a_pod_with_a_volume(node: Node, image: str, pod: str, tmp_path: Path) -> None:
    (tmp_path / "given").write_text("by the host")
    container = node.cri.run(pod, image, WAITS, mounts={"/volume": str(tmp_path)})
    assert node.cri.exec(container, "cat", "/volume/given") == (0, "by the host")
    assert node.cri.exec(container, "sh", "-c", "echo -n by the pod >/volume/made")[0] == 0
    assert (tmp_path / "made").read_text() == "by the pod"


def test_a_start_is_recorded_for_the_workload_that_an_annotation_names(
    node: Node, registry: Registry, store: Path, pod: str
) -> None:
    image = registry.push("workload:1", [base(), layer(directory("data"), file("data/a", os.urandom(1 << 20)))])
    node.imagefs("build", f"docker://{image}", str(store), "--no-src-tls-verify", "-t", "workload")
    node.cri.pull(image)
    annotations = {"containerd.io/snapshot/imagefs.workload": "training"}
    container = node.cri.run(pod, image, WAITS, annotations=annotations)
    sums(node, container)
    eventually(lambda: "training" in node.imagefs("trace", "show", f"{store}#workload"), "the trace")


def test_a_machine_that_starts_again(node: Node, image: str) -> None:
    """The run folders are empty then and nothing is mounted; what containers wrote is there still."""
    command = ("sh", "-c", "echo >>/note; wc -l </note; cat /data/* | md5sum")
    first = node.ctr("run", "--snapshotter", "imagefs", image, "reboot", *command).stdout.split()
    node.reboot()
    again = node.ctr("tasks", "start", "reboot").stdout.split()
    assert (first[0], again) == ("1", ["2", *first[1:]])
    node.ctr("containers", "rm", "reboot")


def test_what_is_no_snapshot_is_told(node: Node) -> None:
    done = node.ctr("snapshots", "--snapshotter", "imagefs", "rm", "nothing", check=False)
    assert done.returncode != 0
    assert "not found" in done.stderr


def test_a_store_that_lost_the_image_after_it_was_pulled(node: Node, registry: Registry, store: Path) -> None:
    """Its layers come from the registry then."""
    image = registry.push("lost:1", [base(), layer(directory("data"), file("data/a", b"from the registry"))])
    digest = node.imagefs("build", f"docker://{image}", str(store), "--no-src-tls-verify", "--quiet").strip()
    node.cri.pull(image)
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
