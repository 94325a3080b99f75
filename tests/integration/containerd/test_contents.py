"""Images that are committed and pushed, collected by containerd, declare volumes, or have dependencies above them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

from imagefs.format.documents import Snapshot, key_digest
from imagefs.repository.snapshots import Snapshots
from tests.integration.containerd.conftest import WAITS, lazy
from tests.support.images.layers import directory, file, layer
from tests.support.images.stores import build_tree, images_in
from tests.support.waiting import eventually
from tests.tools.containerd.node import Node, Registry


def archive(registry: Registry, name: str, blob: bytes, reference: str) -> bytes:
    """An archive that `ctr images import` takes: the image that was pushed as `name` with one layer more. The layers
    below are not in it, as they are not on the host either."""
    folder = registry.folder / f"layout-{name.replace(':', '-')}"

    def read(digest: str) -> Any:
        return json.loads((folder / "blobs" / digest.replace(":", "/")).read_text())

    (described,) = json.loads((folder / "index.json").read_text())["manifests"]
    manifest = read(described["digest"])
    config = read(manifest["config"]["digest"])
    config["rootfs"]["diff_ids"].append(f"sha256:{hashlib.sha256(gzip.decompress(blob)).hexdigest()}")
    config.get("history", []).append({"created_by": "commit"})
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:

        def add(path: str, data: bytes) -> None:
            member = tarfile.TarInfo(path)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))

        def put(data: bytes, kind: str) -> dict[str, Any]:
            digest = hashlib.sha256(data).hexdigest()
            add(f"blobs/sha256/{digest}", data)
            return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

        manifest["layers"].append(put(blob, "application/vnd.oci.image.layer.v1.tar+gzip"))
        manifest["config"] = put(json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json")
        entry = put(json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")
        entry["annotations"] = {"io.containerd.image.name": reference}
        add("index.json", json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode())
        add("oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
    return out.getvalue()


def test_a_changed_container_is_committed_and_pushed(
    node: Node, registry: Registry, store: Path, tmp_path: Path
) -> None:
    """As `nerdctl commit` does: the layers of a lazy image, which are not on the host, are fetched before the push."""
    image, _ = lazy(node, registry, store, "commit", layer(directory("d"), file("d/gone", b"1"), file("d/kept", b"2")))
    change = ("sh", "-c", "rm /d/gone; echo new >/d/made; echo more >>/d/kept")
    node.ctr("run", "--snapshotter", "imagefs", image, "committed", *change)
    blob = node.diff("committed")
    with tarfile.open(fileobj=io.BytesIO(blob)) as tar:
        names = tar.getnames()
    assert {"d/.wh.gone", "d/made", "d/kept"} <= set(names)
    assert "bin/busybox" not in names
    committed = image.replace(":1", ":2")
    (tmp_path / "archive.tar").write_bytes(archive(registry, "commit:1", blob, committed))
    node.ctr("images", "import", "--no-unpack", str(tmp_path / "archive.tar"))
    node.ctr("content", "fetch", "--plain-http", image)
    node.ctr("images", "push", "--plain-http", committed)
    node.ctr("containers", "rm", "committed")
    for one in (committed, image):
        node.ctr("images", "rm", "--sync", one)
    node.cri.pull(committed)
    look = ("sh", "-c", "ls /d; cat /d/made /d/kept")
    assert node.run(committed, "of-committed", *look).split() == ["kept", "made", "new", "2more"]


def test_containerd_collects_what_nobody_refers_to(node: Node, registry: Registry, store: Path) -> None:
    """Layers that were taken lazily are kept by the image's config, as those that were extracted are."""
    before = set(node.snapshots())
    image, _ = lazy(node, registry, store, "garbage", layer(directory("d"), file("d/a", b"content")))
    lazily = set(node.snapshots()) - before
    node.ctr("run", "--snapshotter", "imagefs", image, "loose", "cat", "/d/a")
    node.ctr("content", "prune", "references")
    node.collect_garbage(image)
    assert lazily | {"loose"} <= set(node.snapshots())

    def leased() -> set[str]:
        holders = [holder for one in node.status()["images"] for holder in one["holders"]]
        return {holder["label"] for holder in holders if holder["kind"] == "lease"}

    assert [label for label in leased() if label.endswith("/loose")]
    node.ctr("containers", "rm", "--keep-snapshot", "loose")
    node.collect_garbage(image)
    assert set(node.snapshots()) == before | lazily
    eventually(lambda: not [label for label in leased() if label.endswith("/loose")], "the end of its lease")
    assert node.run(image, "collected", "cat", "/d/a") == "content"
    node.remove_image(image)
    assert set(node.snapshots()) == before


def test_an_image_that_declares_a_volume(node: Node, registry: Registry, store: Path, pod: str) -> None:
    """CRI makes a directory of the host for it, with what the image has there."""
    below = layer(directory("data", mode=0o750, uid=3, gid=4), file("data/a", b"of the image"))
    image, _ = lazy(node, registry, store, "volume", below, Volumes={"/data": {}})
    first, second = (node.cri.run(pod, image, WAITS) for _ in range(2))
    assert node.cri.exec(first, "cat", "/data/a") == (0, "of the image")
    assert node.cri.exec(first, "stat", "-c", "%a %u %g", "/data") == (0, "750 3 4\n")
    assert node.cri.exec(first, "sh", "-c", "echo -n changed >/data/a; cat /data/a") == (0, "changed")
    assert node.cri.exec(second, "cat", "/data/a") == (0, "of the image")
    _, mounts = node.cri.exec(first, "cat", "/proc/mounts")
    assert [line.split()[2] for line in mounts.splitlines() if line.split()[1] == "/data"] != ["overlay"]


def test_dependency_snapshots_are_stacked_above_the_image(
    node: Node, registry: Registry, store: Path, pod: str, tmp_path: Path
) -> None:
    """An annotation of the container names them; one that is not there costs a line in the log."""
    image, _ = lazy(
        node, registry, store, "deps", layer(directory("lib"), file("lib/app", b"app"), file("lib/old", b"1"))
    )
    deps = tmp_path / "deps"
    images = images_in(deps)
    for number in range(2):
        installed = tmp_path / f"installed{number}"
        (installed / "lib").mkdir(parents=True)
        (installed / "lib" / f"module{number}").write_text(f"of {number}")
        (installed / "lib/both").write_text(f"of {number}")
        built = build_tree(installed, images, source=key_digest(number))
        Snapshots(images).put(Snapshot(number, built.digest, "container", ("/lib",), 0.0, 1.0))
    keys = ",".join(f"{deps}#{key_digest(number)}" for number in (1, 0, 7))
    annotations = {"containerd.io/snapshot/imagefs.deps": keys}
    container = node.cri.run(pod, image, WAITS, annotations=annotations)
    assert node.cri.exec(container, "ls", "/lib") == (0, "app\nboth\nmodule0\nmodule1\nold\n")
    assert node.cri.exec(container, "cat", "/lib/both", "/lib/module0") == (0, "of 1of 0")
    assert f"without the dependency snapshot {key_digest(7)}" in node.log()
    node.stop("snapshotter")
    node.start_snapshotter()
    plain = node.cri.run(pod, image, WAITS)
    assert node.cri.exec(plain, "ls", "/lib") == (0, "app\nold\n")
    assert node.cri.exec(container, "cat", "/lib/module1") == (0, "of 1")
