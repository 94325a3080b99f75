"""The configuration that is printed, images that are pulled through CRI, and containers that are started from them."""

from __future__ import annotations

from pathlib import Path

from imagefs.doctor.services import containerd_facts, judge_containerd
from tests.integration.containerd.conftest import base, build, lazy
from tests.support.images.faults import objects
from tests.support.images.layers import directory, file, layer
from tests.support.waiting import eventually
from tests.tools.containerd.node import Node, Registry


def test_the_doctor_finds_nothing_against_the_configuration(node: Node) -> None:
    (node.folder / "c/root/io.containerd.snapshotter.v1.imagefs").symlink_to(node.root)  # before 1.7.17
    facts = containerd_facts(str(node.folder / "config.toml"))
    found = judge_containerd(facts, str(node.folder / "snapshotter.sock"), str(node.root))
    assert {one.check for one in found} >= {"containerd.version", "containerd.plugin", "containerd.running"}
    assert [one for one in found if one.state != "ok"] == []


def test_a_lazy_image_is_not_fetched(node: Node, registry: Registry, store: Path) -> None:
    before = set(node.blobs())
    image, _ = lazy(node, registry, store, "lazy", layer(directory("data"), file("data/a", b"content" * 100_000)))
    assert len(set(node.blobs()) - before) == 2, "only the manifest and the config are fetched"
    assert node.run(image, "lazy", "sh", "-c", "cat /data/a | wc -c") == "700000\n"
    assert node.run(image, "lazy2", "sh", "-c", "echo new >/data/a; cat /data/a") == "new\n"
    assert node.run(image, "lazy3", "head", "-c", "7", "/data/a") == "content"


def test_an_image_that_shares_its_base_with_a_lazy_one(node: Node, registry: Registry, store: Path) -> None:
    """containerd takes the shared layers for present: they are built into a tree of their own, which goes with them."""
    shared = layer(directory("shared"), file("shared/a", b"shared by two"))
    lazy = registry.push("family:lazy", [base(), shared, layer(file("shared/only-lazy", b"1"))])
    other = registry.push("family:other", [base(), shared, layer(file("shared/.wh.a"), file("shared/other", b"2"))])
    parent = registry.push("family:parent", [base(), shared])
    build(node, lazy, store)
    for image in (lazy, other, parent):
        node.cri.pull(image)
    assert node.run(lazy, "family-lazy", "ls", "/shared").split() == ["a", "only-lazy"]
    assert node.run(other, "family-other", "ls", "/shared").split() == ["other"]
    assert node.run(parent, "family-parent", "ls", "/shared").split() == ["a"]
    built = node.root / "built"
    assert objects(built, "packs")
    for image in (other, parent, lazy):
        node.remove_image(image)
    eventually(lambda: not (objects(built, "packs") or objects(built, "images")), "the end of its blocks")


def test_an_image_whose_layers_are_the_lowest_of_another(node: Node, registry: Registry, store: Path) -> None:
    """It is in the store by its chain id, which is all that containerd tells of a layer that is there."""
    parent = [base(), layer(directory("p"), file("p/parent", b"1"))]
    child = registry.push("chain:child", [*parent, layer(file("p/child", b"1"))])
    small = registry.push("chain:small", parent)
    build(node, child, store)
    build(node, small, store)
    node.cri.pull(child)
    before = registry.requested()
    node.cri.pull(small)
    assert node.run(small, "small", "ls", "/p").split() == ["parent"]
    assert not [one for one in registry.layers("chain:small") if one in registry.requested()[len(before) :]]


def test_60_layers(node: Node, registry: Registry, store: Path) -> None:
    """An image of so many layers that no store has is pulled as always; lazily it has the same tree."""
    layers = [
        base(),
        layer(directory("d", mode=0o750), file("d/gone", b"1"), file("d/stays", b"1", mode=0o4755, uid=1)),
        layer(directory("o"), file("o/below", b"1"), file("d/stays", b"22", mode=0o600, uid=5, gid=6)),
        layer(directory("d", mode=0o1777, uid=7, gid=8), file("d/.wh.gone")),
        layer(directory("o"), file("o/.wh..wh..opq"), file("o/above", b"1")),
    ]
    layers += [layer(file(f"d/{number}", b"%d" % number)) for number in range(60 - len(layers))]
    image = registry.push("layers:60", layers)
    node.cri.pull(image)
    look = ("sh", "-c", "find /d /o | sort | while read f; do stat -c '%n %a %u %g' $f; done; cat /d/*")
    ordinary = node.run(image, "ordinary60", *look)
    lines = ordinary.splitlines()
    assert len(lines) > 58
    assert {"/d 1777 7 8", "/d/stays 600 5 6"} <= set(lines)
    assert [line.split()[0] for line in lines if line.startswith(("/d/gone", "/o/"))] == ["/o/above"]
    node.remove_image(image)
    build(node, image, store)
    node.forget_answers()
    node.cri.pull(image)
    assert node.run(image, "lazy60", *look) == ordinary
