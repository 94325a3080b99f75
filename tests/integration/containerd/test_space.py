"""The disk that lazy images take: what containerd is told, what frees it, what pins it, and what a full one does."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
from pathlib import Path

from tests.integration.containerd.conftest import WAITS, lazy
from tests.support.images.layers import directory, file, layer
from tests.support.waiting import eventually
from tests.tools.containerd.node import Node, Registry

MIB = 1 << 20
SIZE = 3 * MIB


def stored(node: Node, registry: Registry, store: Path, name: str) -> tuple[str, str]:
    """An image with /data/a of `SIZE` bytes that is in the store and pulled; its reference and its digest there."""
    content = random.Random(name).randbytes(SIZE)
    return lazy(node, registry, store, name, layer(directory("data"), file("data/a", content), file("data/b", b"b")))


def top(node: Node, before: set[str]) -> str:
    """The highest layer of the image that was pulled since."""
    found = {name: parent for name, (parent, _) in node.snapshots().items() if name not in before}
    (highest,) = found.keys() - set(found.values())
    return highest


def devices(node: Node, digest: str) -> set[str]:
    """Digests of the block indexes of an image."""
    (manifest,) = (node.cache / "manifests").glob(digest)
    return {path.stem for path in (node.cache / "blocks").iterdir() if path.stem in manifest.read_text()}


def taken(node: Node) -> int:
    """Bytes on the disk of the cache."""
    space = os.statvfs(node.cache)
    return (space.f_blocks - space.f_bfree) * space.f_frsize


def test_usage_grows_with_what_is_read_and_the_disk_is_freed_with_the_image(
    node: Node, registry: Registry, store: Path
) -> None:
    before, empty = set(node.snapshots()), taken(node)
    image, digest = stored(node, registry, store, "usage")
    layer = top(node, before)
    assert node.usage(layer) <= MIB, "nothing was read yet"
    node.run(image, "usage", "sh", "-c", "cat /data/a | wc -c")
    eventually(lambda: node.usage(layer) >= SIZE, "the blocks on disk")
    every = [name for name in node.snapshots() if name not in before]
    assert sum(node.usage(name) for name in every) <= taken(node) - empty + MIB
    assert [node.usage(name) for name in every if name != layer] == [0] * (len(every) - 1)
    parts = devices(node, digest)
    assert parts
    node.remove_image(image)
    eventually(lambda: taken(node) < empty + MIB, "the room on the cache's disk")
    assert not [path for path in (node.cache / "blocks").iterdir() if path.stem in parts]


def test_processes_in_other_mount_namespaces_pin_no_image(
    node: Node, registry: Registry, store: Path, pod: str
) -> None:
    """Another container, and services with mounts of their own, start while an image is mounted; then that goes."""
    other, _ = stored(node, registry, store, "staying")
    image, digest = stored(node, registry, store, "pinned")
    here = os.readlink("/proc/self/ns/mnt")
    container = node.cri.run(pod, image, WAITS)
    assert node.cri.exec(container, "sh", "-c", "head -c 10 /data/a | wc -c") == (0, "10\n")
    parts = devices(node, digest)
    with contextlib.ExitStack() as held:
        for propagation in ("private", "slave"):
            command = ["unshare", "--mount", "--propagation", propagation, "sleep", "100000"]
            outsider = held.enter_context(subprocess.Popen(command))
            held.callback(outsider.kill)
            eventually(lambda pid=outsider.pid: os.readlink(f"/proc/{pid}/ns/mnt") != here, "its namespace")  # type: ignore[misc]
        staying = node.cri.run(pod, other, WAITS)
        node.cri.remove_container(container)
        node.remove_image(image)

        def in_use() -> set[str]:
            """Devices that somebody has mounted, or the kernel has open."""
            return parts & {one["index"] for one in node.status()["blocks"]["devices"]}

        eventually(lambda: not in_use(), "the end of the file system of the image")
        blocks = node.cache / "blocks"
        eventually(lambda: not [path for path in blocks.iterdir() if path.stem in parts], "the room on disk")
        assert node.cri.exec(staying, "head", "-c", "1", "/data/b") == (0, "b")


def test_an_image_that_is_new_while_the_disk_of_the_cache_is_full(
    node: Node, registry: Registry, store: Path, pod: str
) -> None:
    """Its metadata is kept in memory as long as it is used, and its blocks are read past the disk."""
    image, digest = stored(node, registry, store, "cache-full-new")
    with node.full_disk(node.cache):
        started = node.cri.run(pod, image, WAITS)
        assert node.cri.exec(started, "cat", "/data/b") == (0, "b")
        os.kill(node.worker(), signal.SIGKILL)
        (code, text) = node.cri.exec(started, "sh", "-c", "cat /data/a | md5sum")
        assert code == 0, text
    assert node.cri.exec(node.cri.run(pod, image, WAITS), "sh", "-c", "cat /data/a | md5sum") == (0, text)
    spill = node.folder / "run/imagefs/documents"
    spilled = list(spill.glob("*/*"))
    assert spill / "manifests" / digest in spilled
    node.cri.remove_pods()
    node.remove_image(image)
    eventually(lambda: not [path for path in spilled if path.exists()], "the end of what was spilled")
