"""The lookup of a container image's lazy image: places and their order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from imagefs.daemon.client import Client
from imagefs.daemon.protocol import FoundImage
from imagefs.snapshotter.core import TARGET
from imagefs.snapshotter.lazy import LAYER, LAYERS, MANIFEST, REFERENCE, DaemonImages
from stripefs.errors import MountError
from stripefs.settings import StoreSettings

SOURCE = "sha256:" + "5a" * 32


class FakeClient:
    """A daemon that finds the image in the store with that URL. asked: URLs of stores, for each question."""

    def __init__(self, url: str = "") -> None:
        self.url = url
        self.asked: list[list[str]] = []
        self.timeouts: list[float] = []

    def find(self, stores: Sequence[StoreSettings], source: str, timeout: float) -> FoundImage | None:
        assert source == SOURCE
        self.asked.append([store.url for store in stores])
        self.timeouts.append(timeout)
        if self.url == "down":
            raise MountError("no daemon answers")
        return next((FoundImage("ab" * 32, store) for store in stores if store.url == self.url), None)


def images(client: FakeClient, tmp_path: Path, stores: Sequence[str] = (), **options: Any) -> DaemonImages:
    return DaemonImages(
        cast(Client, client),
        stores,
        lambda url: StoreSettings(url=url),
        name="test",
        built=tmp_path,
        **{"registries": True, **options},
    )


def labels(reference: str) -> dict[str, str]:
    return {MANIFEST: SOURCE, REFERENCE: reference, TARGET: "sha256:1", LAYER: "sha256:2", LAYERS: "sha256:2"}


@pytest.mark.parametrize(
    ("reference", "url"),
    [
        ("registry.example/team/app:1", "oci://registry.example/team/app?lookup=brief"),
        (f"registry.example:5000/app@{SOURCE}", "oci://registry.example:5000/app?lookup=brief"),
        ("docker.io/library/python:3.12", "oci://docker.io/library/python?lookup=brief"),
        ("127.0.0.1:5000/app:1", "oci://127.0.0.1:5000/app?scheme=http&lookup=brief"),
        ("localhost/app:1", "oci://localhost/app?scheme=http&lookup=brief"),
        ("plain.example/app:1", "oci://plain.example/app?scheme=http&lookup=brief"),
    ],
)
def test_the_repository_of_the_image_is_asked(reference: str, url: str, tmp_path: Path) -> None:
    client = FakeClient(url)
    found = images(client, tmp_path, plain_http=["plain.example"]).find(labels(reference))
    assert client.asked == [[url]]
    assert found is not None
    assert found.tree is not None
    assert (found.tree.store, found.tree.image) == (url, "ab" * 32)


def test_stores_come_first_and_all_have_the_same_time(tmp_path: Path) -> None:
    client = FakeClient("s3://bucket/images")
    made = images(client, tmp_path, ["/srv/images", "s3://bucket/images"])
    found = made.find(labels("registry.example/app:1"))
    assert client.asked == [["/srv/images", "s3://bucket/images", "oci://registry.example/app?lookup=brief"]]
    assert client.timeouts == [5.0]
    assert found is not None
    assert found.tree is not None
    assert found.tree.store == "s3://bucket/images"


def test_a_repository_that_is_a_store_is_asked_once(tmp_path: Path) -> None:
    client = FakeClient()
    store = "oci://registry.example/app?ca-file=/ca.pem"
    assert images(client, tmp_path, [store]).find(labels("registry.example/app:1")) is None
    assert client.asked == [[store]]


@pytest.mark.parametrize("reference", ["", "app", "app:1", "team/app:1", "sha256:" + "ab" * 32])
def test_a_name_of_no_registry_asks_none(reference: str, tmp_path: Path) -> None:
    client = FakeClient()
    assert images(client, tmp_path).find(labels(reference)) is None
    assert client.asked == []


def test_no_registry_is_asked_where_that_is_off(tmp_path: Path) -> None:
    client = FakeClient()
    assert images(client, tmp_path, registries=False).find(labels("registry.example/app:1")) is None
    assert client.asked == []


def test_a_daemon_that_is_away_means_an_ordinary_pull(tmp_path: Path) -> None:
    assert images(FakeClient("down"), tmp_path).find(labels("registry.example/app:1")) is None
