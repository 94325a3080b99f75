"""gc, recover and info on the real HDFS, with the protection of age taken away."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stripefs import logs
from stripefs.cli.main import PROGRAM
from stripefs.settings import StoreSettings
from stripefs.store.base import Store
from stripefs.store.url import open_store
from stripefs.write import Layout
from stripefs.write.file_lock import acquire
from tests.support.uploads import MIB, content, load, writing
from tests.tools.hdfs import HdfsInstance

pytestmark = [pytest.mark.cluster, pytest.mark.root, pytest.mark.slow]


@pytest.fixture
def store(hdfs: HdfsInstance, request: pytest.FixtureRequest) -> Any:
    top = open_store(StoreSettings(url=hdfs.url))
    top.mkdir(f"/{request.node.name}".encode())
    top.close()
    store = open_store(StoreSettings(url=f"{hdfs.url}/{request.node.name}"))
    yield store
    store.close()


def names(store: Store, folder: bytes = b"/") -> set[str]:
    found = set()
    for batch in store.scandir(folder):
        for status in batch:
            path = folder.rstrip(b"/") + b"/" + status.name
            found |= names(store, path) if status.kind.value == "directory" else {path.decode()}
    return found


async def test_a_writer_dies_and_its_file_comes_back(
    hdfs: HdfsInstance, store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(code: int, *arguments: object) -> Any:
        assert PROGRAM.main([*map(str, arguments), "--json"]) == code
        return json.loads(capsys.readouterr().out)

    monkeypatch.setattr(logs, "configure", lambda *_: None)  # which would hold for the tests that follow as well
    for module in ("rules", "collect"):
        monkeypatch.setattr(f"stripefs.gc.{module}.FORCED_AGE", 0.0)
    url = store.url
    store.mkdir(b"/run")
    data = content(40 * MIB)
    for name, layout in ((b"/run/striped", Layout.STRIPED), (b"/run/joined", Layout.CONCAT)):
        async with writing(store, layout=layout, unit=4 * MIB, memory=256 * MIB, io_timeout=60.0) as uploads:
            upload = await uploads.begin(name, replacing=None)
            for at in range(0, len(data), MIB):
                await upload.write(at, data[at : at + MIB])
            await upload.sync()
            await upload.write(len(data), content(20 * MIB))
            found = answer(0, "gc", url, "--dry-run")  # the writer lives, and a day has not passed
            assert found["removed"] == 0
            found = answer(0, "gc", url, "--force")
            assert not [
                item for item in found["items"] if upload.version in item["path"] or name.decode() in item["path"]
            ]
            await upload.abandon(recoverable=True)
        assert answer(0, "gc", url)["removed"] == 0
        assert answer(0, "recover", f"{url}{name.decode()}", "--dry-run")["bytes"] == len(data)
        assert answer(0, "recover", f"{url}{name.decode()}")["complete"]
        # Parts that the fsync did not name; what is younger than the store's clock can tell goes next time.
        assert {item["kind"] for item in answer(0, "gc", url, "--force")["items"]} <= {"part"}
        assert load(store, name) == data
    lease = acquire(store, b"/run/locked")
    found = answer(0, "gc", url, "--force")
    assert "/run/.locked.stripefs-lock" in names(store)
    lease.release()
    assert {item["kind"] for item in found["items"]} <= {"part", "version"}
    left = names(store)
    assert {name for name in left if not name.startswith("/.stripefs/")} == {"/run/striped", "/run/joined"}

    info = answer(0, "info", f"{url}/run/striped")
    assert (info["layout"], info["length"], info["trouble"]) == ("striped", len(data), [])
    assert {part["name"] for part in info["parts"]} <= {name.removeprefix("/.stripefs/") for name in left}
    assert (len(info["hosts"]), info["live_hosts"]) == (info["width"], len(store.hosts()))
    info = answer(0, "info", f"{url}/run/joined")
    assert (info["layout"], info["length"]) == ("ordinary", len(data))
    assert len(info["hosts"]) > 1

    store.remove(b"/run/striped")
    store.put(b"/run/joined", [b"new"], replace=True)
    found = answer(0, "gc", url, "--force")
    assert [item["kind"] for item in found["items"]] == ["version"]
    assert names(store) == {"/run/joined"}
