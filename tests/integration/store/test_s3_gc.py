"""gc on a bucket: no renames, no locks, no directories, times in whole seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stripefs.format.manifest import Manifest, Part, PartTable, Segment, digest_of
from stripefs.gc.collect import Collection
from stripefs.settings import StoreSettings
from stripefs.store.base import Store
from stripefs.store.striped import StripedStore
from stripefs.store.url import open_store
from tests.support.stores import content
from tests.tools.s3_server import BUCKET, Server

UNIT = 4096
NEEDED, LOST = "1" * 16, "2" * 16


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    store = open_store(StoreSettings(url=server.url("gc")), make=True)
    yield store
    store.close()


def part(store: Store, version: str, data: bytes) -> Part:
    table = PartTable(UNIT)
    table.add(data)
    behind = table.finish()
    store.put(f"/.stripefs/{version}/0".encode(), [data, behind])
    return Part(version, 0, len(data) + len(behind), digest_of(behind))


def keys(server: Server) -> set[str]:
    found = server.client.list_objects_v2(Bucket=BUCKET, Prefix="gc/").get("Contents", [])
    return {each["Key"].removeprefix("gc/") for each in found if not each["Key"].endswith("/")}


def test_rubbish_goes_from_a_bucket(server: Server, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    data = content(3 * UNIT)
    view = StripedStore(store)
    manifest = Manifest(NEEDED, 0, UNIT, view.pool, (Segment(len(data), (part(store, NEEDED, data),)),))
    store.put(b"/run/striped", [manifest.to_bytes()])
    store.put(b"/run/plain", [b"plain"])
    part(store, LOST, data)
    hidden = f"/run/.model.stripefs-{LOST}-0"
    store.put(hidden.encode(), [b"part"])
    before = keys(server)

    assert Collection(store, view).run().removed == 0
    assert Collection(store, view, force=True).run().removed == 0
    assert keys(server) == before
    for module in ("rules", "collect"):
        monkeypatch.setattr(f"stripefs.gc.{module}.FORCED_AGE", 0.0)
    found = Collection(store, view, force=True).run()
    assert found.trouble == []
    assert {item.path.decode() for item in found.items} == {hidden, f"/.stripefs/{LOST}"}
    assert keys(server) == {"run/striped", "run/plain", f".stripefs/{NEEDED}/0"}
    assert bytes(view.get(b"/run/striped")) == manifest.to_bytes()  # a bucket keeps no marks
    assert Collection(store, view, force=True).run().removed == 0
