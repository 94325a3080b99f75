"""`imagefs push`, `pull`, `convert` and `gc` with Debian's docker-registry."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import random
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imagefs.errors import NoSuchImage
from imagefs.format.trace import Plan, PlanRun, Touch, Trace
from imagefs.housekeeping.verify import verify
from imagefs.reference import Platform
from imagefs.repository.registry import RegistryRepository
from imagefs.repository.traces import Traces
from stripefs.errors import StoreError
from tests.support.images.layers import directory, file, layer
from tests.support.images.stores import build_tree, images_at, images_in, write_tree
from tests.tools.imagefs_daemon import Service
from tests.tools.registry import push_image, running_registry
from tests.unit.imagefs.cli.conftest import Command

_numbers = itertools.count()
MANIFEST, INDEX = (f"application/vnd.oci.image.{kind}.v1+json" for kind in ("manifest", "index"))


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("IMAGEFS_TMP", str(tmp_path / "tmp"))


def new_url(registry: str) -> str:
    return f"oci://{registry}/team/app{next(_numbers)}?scheme=http"


def named(url: str, tag: str) -> str:
    place, _, query = url.partition("?")
    return f"{place}:{tag}?{query}"


def ask(registry: str, name: str, reference: str, **request: Any) -> bytes:
    """The answer about a manifest of a container image: its bytes, unless the request is another than for these."""
    url = f"http://{registry}/v2/{name}/manifests/{reference}"
    with urllib.request.urlopen(urllib.request.Request(url, **{"headers": {"Accept": MANIFEST}, **request})) as answer:
        return bytes(answer.read())


def trace_of(base: str, started: float, path: bytes = b"a", length: int = 10) -> Trace:
    return Trace(base, "default", "n", started, 1.0, "ready", True, "", [Touch(0, path, 0, length, bytes(16))])


def payload(seed: int) -> list[bytes]:
    return [
        layer(directory("data"), file("data/a", random.Random(seed).randbytes(400_000))),
        layer(file("data/b", b"content" * 50_000)),
    ]


# -- push and pull -------------------------------------------------------------------------------------------------


def test_an_image_there_and_back(registry: str, imagefs: Command, tmp_path: Path) -> None:
    store, back, url = tmp_path / "store", tmp_path / "back", new_url(registry)
    images = images_in(store)
    digest = build_tree(write_tree(tmp_path / "source", a=1, b=2), images, "app").digest
    traces = Traces(images.repository)
    names = [traces.put(trace_of(digest, started)) for started in (1.0, 2.0)]
    traces.put_plan(Plan(digest, "default", 2, [PlanRun(1, 0, 1)]))
    pushed = imagefs.json("push", f"{store}#app", url)
    assert (pushed["digest"], pushed["tag"], pushed["traces"], pushed["plans"]) == (digest, "app", 2, 1)
    assert pushed["bytes"] > 600_000
    with images_at(url) as there:
        assert there.tags() == {"app": digest}
        assert verify(there).damage == []
    again = imagefs.json("push", f"{store}#app", named(url, "other"))
    assert [again[key] for key in ("tag", "objects", "bytes", "linked", "traces", "plans")] == ["other", 0, 0, 0, 0, 0]
    pulled = imagefs.json("pull", named(url, "other"), back)
    assert [pulled[key] for key in ("digest", "tag", "traces", "plans")] == [digest, "other", 2, 1]
    copied = images_in(back)
    assert copied.tags() == {"other": digest}
    assert verify(copied).damage == []
    assert Traces(copied.repository).names(digest, "default") == names
    assert Traces(copied.repository).plan(digest, "default") == traces.plan(digest, "default")


def test_what_another_repository_of_the_registry_has_is_linked(registry: str, imagefs: Command, tmp_path: Path) -> None:
    store, first, second = tmp_path / "store", new_url(registry), new_url(registry)
    build_tree(write_tree(tmp_path / "source", a=11, b=12), images_in(store), "app")
    sent = imagefs.json("push", f"{store}#app", first)
    linked = imagefs.json("push", named(first, "app"), second)
    assert [linked[key] for key in ("objects", "bytes", "linked")] == [0, 0, sent["objects"]]
    with images_at(second) as there:
        assert verify(there).damage == []


def test_a_copy_that_breaks_off_is_not_found_and_the_next_goes_on(
    registry: str, imagefs: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, url = tmp_path / "store", new_url(registry)
    digest = build_tree(write_tree(tmp_path / "source", a=21), images_in(store), "app").digest
    put = RegistryRepository.put

    def broken(self: RegistryRepository, path: bytes, data: bytes, *, replace: bool = False) -> None:
        if path.startswith(b"/metadata/"):
            raise StoreError("the connection ended")
        put(self, path, data, replace=replace)

    with monkeypatch.context() as patched:
        patched.setattr(RegistryRepository, "put", broken)
        assert imagefs.run("push", f"{store}#app", url)[0] == 3
    with images_at(url) as there:
        assert (there.tags(), there.images()) == ({}, {})
        with pytest.raises(NoSuchImage):
            there.resolve("app")
    done = imagefs.json("push", f"{store}#app", url)
    assert (done["digest"], done["present"]) == (digest, 2)  # the pack and its index
    assert done["bytes"] < 100_000


def test_a_lazy_image_that_comes_before_its_container_image_is_attached_by_the_next_push(
    registry: str, imagefs: Command, tmp_path: Path
) -> None:
    first, later = (f"early{next(_numbers)}" for _ in range(2))
    store, url = tmp_path / "store", f"oci://{registry}/{later}?scheme=http"
    image = push_image(tmp_path, registry, f"{first}:1", payload(45))
    digest = imagefs.json("build", f"docker://{image}", store, "--tag", "app", "--no-src-tls-verify")["digest"]
    with images_at(url) as there:
        for attached in (False, True):
            imagefs.json("push", f"{store}#app", named(url, "lazy"))
            source = there.manifest(digest).source
            assert there.by_source(source) == digest
            assert there.repository.attached() == ({digest: None} if attached else {})
            plain = ["--src-tls-verify=false", "--dest-tls-verify=false"]
            places = [f"docker://{image}", f"docker://{registry}/{later}:1"]
            subprocess.run(["skopeo", "copy", "--quiet", *plain, *places], check=True)


# -- convert -------------------------------------------------------------------------------------------------------


def test_a_lazy_image_is_attached_to_a_container_image(registry: str, imagefs: Command, tmp_path: Path) -> None:
    image = push_image(tmp_path, registry, "converted:1", payload(51))
    made = imagefs.json("convert", f"docker://{image}", "--plain-http")
    url = f"oci://{registry}/converted?scheme=http"
    assert (made["store"], made["tag"]) == (url, "")
    with images_at(url) as there:
        assert there.resolve("1") == made["digest"], "the container image's tag stands for the lazy image"
        assert there.tags() == {"1": made["digest"]}
        assert there.by_source(there.manifest(made["digest"]).source) == made["digest"]
        Traces(there.repository).put(trace_of(made["digest"], 1.0, b"data/a", 65536))
    again = imagefs.json("convert", f"docker://{image}", "--plain-http")
    assert again["built"]["new_bytes"] == 0
    assert again["hot"]["traces"] == 1, "what was recorded meanwhile is used"
    with images_at(url) as there:
        assert there.resolve("1") == again["digest"] != made["digest"]


def test_a_container_image_of_several_platforms(registry: str, imagefs: Command, tmp_path: Path) -> None:
    name = f"multi{next(_numbers)}"
    push_image(tmp_path, registry, f"{name}:amd64", payload(55))
    push_image(tmp_path, registry, f"{name}:arm64", payload(56))
    entries: list[dict[str, Any]] = []
    for platform in ("amd64", "arm64"):
        data = ask(registry, name, platform)
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        described = {"os": "linux", "architecture": platform} | ({"variant": "v8"} if platform == "arm64" else {})
        entries.append({"mediaType": MANIFEST, "digest": digest, "size": len(data), "platform": described})
    index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode()
    ask(registry, name, "1", method="PUT", data=index, headers={"Content-Type": INDEX})
    made = imagefs.json("convert", f"docker://{registry}/{name}:1", "--plain-http", "--platform", "linux/amd64")
    with images_at(f"oci://{registry}/{name}?scheme=http") as there:
        assert there.manifest(made["digest"]).source == entries[0]["digest"]
        assert there.by_source(entries[0]["digest"]) == made["digest"]
        with pytest.raises(NoSuchImage):
            there.by_source(entries[1]["digest"])
        if Platform.current().fits(entries[0]["platform"]):
            assert there.resolve("1") == made["digest"]
        other = imagefs.json("convert", f"docker://{registry}/{name}:1", "--plain-http", "--platform", "linux/arm64")
        assert there.manifest(other["digest"]).config["variant"] == "v8", "only the index tells it"


@pytest.mark.mount
@pytest.mark.root
def test_the_registrys_garbage_collection_spares_what_images_need(tmp_path: Path, service: Service) -> None:
    folder = tmp_path / "registry"
    with running_registry(folder) as address:
        image = push_image(tmp_path, address, "kept:1", payload(61))
        service.ok("convert", f"docker://{image}", "--plain-http")
        url = f"oci://{address}/kept?scheme=http"
        with images_at(url) as images:
            digest = images.resolve("1")
            Traces(images.repository).put(trace_of(digest, 1.0))
            gone = build_tree(write_tree(tmp_path / "gone", a=62), images, "gone").digest
            packs = [
                pack.digest.hex() for one in images.manifest(gone).devices for pack in images.index(one.index).packs
            ]
        service.ok("rm", named(url, "gone"))
    collect = ["docker-registry", "garbage-collect", str(folder / "config.yml")]
    subprocess.run(collect, check=True, capture_output=True)
    left = {path.name for path in (folder / "data").glob("docker/registry/v2/blobs/sha256/*/*")}
    assert packs
    assert not left & set(packs), "what no image needs is freed"
    subprocess.run([*collect, "--delete-untagged"], check=True, capture_output=True)
    with running_registry(folder) as address:
        url = f"oci://{address}/kept?scheme=http"
        with images_at(url) as images:
            assert images.by_source(images.manifest(digest).source) == digest
            assert verify(images).damage == []
            assert len(Traces(images.repository).names(digest, "default")) == 1
        target = service.mountpoint()
        service.ok("mount", named(url, "1"), str(target))
        assert (target / "data/a").read_bytes() == random.Random(61).randbytes(400_000)
        service.ok("umount", str(target))


# -- gc ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def hours_ago(hours: float, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Objects that are stored in registries meanwhile were stored so long ago."""
    with monkeypatch.context() as patched:
        patched.setattr(RegistryRepository, "now_ns", lambda _: time.time_ns() - int(hours * 3600e9))
        yield


def digest_of(registry: str, name: str, tag: str) -> str:
    return "sha256:" + hashlib.sha256(ask(registry, name, tag)).hexdigest()


def test_an_image_whose_container_image_is_gone_goes_when_it_is_old(
    registry: str, imagefs: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"gone{next(_numbers)}"
    sources = [
        digest_of(registry, name, push_image(tmp_path, registry, f"{name}:{tag}", payload(70 + tag)).rpartition(":")[2])
        for tag in (1, 2)
    ]
    url = f"oci://{registry}/{name}?scheme=http"
    with images_at(url) as images:
        with hours_ago(48, monkeypatch):
            gone, stays = (
                build_tree(write_tree(tmp_path / str(number), a=number), images, source=source).digest
                for number, source in enumerate(sources)
            )
            Traces(images.repository).put(trace_of(gone, 1.0))
        assert imagefs.json("gc", url)["removed"] == [], "both have their container images"
        ask(registry, name, sources[0], method="DELETE")
        assert imagefs.json("gc", url, "--older-than", "3d")["removed"] == []
        planned = imagefs.json("gc", url, "--dry-run")["removed"]
        assert [path.partition("/")[0] for path in planned] == ["images", "traces"]
        assert planned[0] == f"images/{gone}"
        assert images.images().keys() == {gone, stays}
        assert imagefs.json("gc", url)["removed"] == planned
        assert images.images().keys() == {stays}
        assert not [tag for tag in images.repository._manifests.tags() if sources[0][7:] in tag]  # type: ignore[attr-defined]
        assert images.by_source(sources[1]) == stays
        assert imagefs.json("gc", url, "--untagged", "--force")["removed"] == [], "attached images need no tag"


def test_an_image_goes_a_day_after_a_newer_one_took_its_place(
    registry: str, imagefs: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"newer{next(_numbers)}"
    push_image(tmp_path, registry, f"{name}:1", payload(80))
    source, url = digest_of(registry, name, "1"), f"oci://{registry}/{name}?scheme=http"
    with images_at(url) as images:
        with hours_ago(100, monkeypatch):
            first = build_tree(write_tree(tmp_path / "a", a=1), images, source=source).digest
            tagged = build_tree(write_tree(tmp_path / "b", b=2), images, source=source).digest
            images.tag("mine", tagged)
        with hours_ago(50, monkeypatch):
            second = build_tree(write_tree(tmp_path / "c", c=3), images, source=source).digest
        newest = build_tree(write_tree(tmp_path / "d", d=4), images, source=source).digest
        assert images.by_source(source) == newest
        assert imagefs.json("gc", url)["removed"] == [f"images/{first}"], "the second was the newest until now"
        assert images.images().keys() == {tagged, second, newest}
        assert imagefs.json("gc", url, "--force")["removed"] == [f"images/{second}"]
        assert images.images().keys() == {tagged, newest}
        assert verify(images).damage == []


def test_a_registry_that_lets_nothing_be_removed(tmp_path: Path, imagefs: Command) -> None:
    with running_registry(tmp_path / "registry", delete=False) as address:
        url = new_url(address)
        with images_at(url) as images:
            build_tree(write_tree(tmp_path / "source", a=95), images)
        code, _, err = imagefs.run("gc", url, "--force", "--untagged")
        assert (code, err.count("\n")) == (3, 1)
        assert "lets nothing be removed" in err
        assert "storage.delete.enabled" in err
