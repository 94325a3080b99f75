"""`stripefs gc`, `recover` and `info` from their arguments to what they print, on a local directory."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from stripefs.cli.info import describe, gather
from stripefs.format.manifest import Segment
from stripefs.settings import StoreSettings
from stripefs.store.base import Block, Handle, Host, Status
from stripefs.store.striped import StripedStore
from stripefs.store.url import open_store
from stripefs.store.wrapper import WrappedHandle, WrappedStore
from tests.support.leftovers import DAY, UNIT, Place, version
from tests.support.uploads import Layout, content, save, writing
from tests.unit.stripefs.cli.conftest import Run

OLD = 2 * DAY


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "store")
    yield place
    place.close()


def broken(place: Place) -> None:
    place.striped("d/striped", version(9), seconds=OLD)
    place.hidden("d", "model", f"{version(1)}-0", OLD, b"12345")
    place.parts(version(5), b"y" * 10_000, 2, OLD)
    place.hidden("d", "kept", f"{version(2)}-0", OLD, b"123")
    place.record("d", "kept", place.concat_record("d", "kept", version(2), [3]), OLD)


# -- gc


def test_gc_names_and_then_removes(place: Place, run: Run) -> None:
    broken(place)
    before = place.everything()
    code, out, err = run("gc", place.root, "--dry-run")
    assert (code, err) == (0, "")
    first, second, summary, recoverable = out.splitlines()
    assert first == f"/d/.model.stripefs-{version(1)}-0  part, 5 B"
    assert second.startswith(f"/.stripefs/{version(5)}  version, ")
    assert summary.startswith("2 (9.8 KiB) would go; 2 (")
    assert summary.endswith("kept for stripefs recover")
    assert recoverable == "stripefs recover could bring back /d/kept"
    assert place.everything() == before

    code, out, err = run("gc", place.root, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert (found["removed"], found["dry_run"], found["recoverable"], found["trouble"]) == (2, False, ["/d/kept"], [])
    assert [item["kind"] for item in found["items"]] == ["part", "version"]
    assert found["bytes"] == sum(item["bytes"] for item in found["items"])
    assert found["kept"]["recoverable"]["count"] == 2

    code, out, err = run("gc", place.root)
    assert (code, out.startswith("0 (0 B) removed; 2 (")) == (0, True)
    code, out, err = run("gc", place.root, "--force")
    assert (code, out) == (0, out)
    assert out.startswith("2 (")
    assert place.everything() == {"d/striped", *(f".stripefs/{version(9)}/{number}" for number in range(3))}


def test_gc_says_what_it_could_not_read(place: Place, run: Run) -> None:
    broken(place)
    manifest = place.root / "d/striped"
    manifest.write_bytes(manifest.read_bytes()[:-1] + b"?")
    code, out, err = run("gc", place.root)
    assert code == 3
    assert "kept, as not all manifests could be read" in out
    assert err.startswith("stripefs: /d/striped: the manifest is damaged")
    assert err.count("\n") == 1


# -- recover


def test_recover_finds_the_pool_above_the_file(place: Place, run: Run) -> None:
    data = content(10_000)
    segment = Segment(len(data), place.parts(version(5), data, 2, OLD))
    record = place.striped_record("d/deep", "model", version(5), [segment])
    place.record("d/deep", "model", record, OLD)
    file = place.root / "d/deep/model"
    assert run("recover", file, "--dry-run") == (0, "9.8 KiB can be recovered\n", "")
    assert not file.exists()
    assert run("recover", file) == (0, "9.8 KiB recovered as /d/deep/model\n", "")
    assert bytes(place.view.get(b"/d/deep/model")) == data
    code, _, err = run("recover", file)
    assert (code, "has no record of an fsync" in err) == (3, True)


def test_recover_what_is_left_under_another_name(place: Place, run: Run) -> None:
    place.file("d/model", b"old")
    place.hidden("d", "model", f"{version(2)}-0", OLD, b"123")
    place.record("d", "model", place.concat_record("d", "model", version(2), [3, 5]), OLD)
    file = place.root / "d/model"
    code, out, err = run("recover", file)
    assert (code, out) == (3, "")
    assert "exists; give another name by --to" in err
    code, out, err = run("recover", file, "--to", "kept", "--json")
    assert code == 3
    assert json.loads(out) == {
        "source": f"{place.root}/d/",
        "path": "/model",
        "target": "/kept",
        "dry_run": False,
        "layout": "concat",
        "bytes": 3,
        "durable": 8,
        "complete": False,
        "lost": f"/.model.stripefs-{version(2)}-1 is missing",
    }
    assert err.startswith("stripefs: the rest of /model is lost: ")
    assert ((place.root / "d/kept").read_bytes(), file.read_bytes()) == (b"123", b"old")


# -- info


async def test_info_of_a_striped_file(place: Place, run: Run) -> None:
    url = f"throttled+file://{place.root}?hosts=4&rate=4GB/s"
    store = open_store(StoreSettings(url=url))
    (place.root / "run").mkdir()
    async with writing(store, layout=Layout.STRIPED) as drafts:
        await save(drafts, b"/run/model", content(2 << 20))
        await save(drafts, b"/run/plain", content(1000))
    file = url.replace("?", "/run/model?")
    code, out, err = run("info", file, "--json")
    found = json.loads(out)
    assert (code, err, found["trouble"]) == (0, "", [])
    assert (found["layout"], found["length"], found["width"], found["live_hosts"]) == ("striped", 2 << 20, 4, 4)
    assert len(found["hosts"]) == 4
    assert 1 <= found["balance"] < 1.1
    assert {host for part in found["parts"] for host in part["hosts"]} == set(found["hosts"])
    assert (found["pool"], found["idle_hosts"], found["thin_blocks"]) == (f"{place.root}/.stripefs", [], 0)
    assert found["blocks"] >= len(found["parts"])
    code, page, _ = run("info", file)
    assert code == 0
    for text in (
        "striped: units of 64 KiB over 4 parts at once, read through stripefs\n",
        f"{place.root}/.stripefs\n",
        "4 of 4 live ones\n",
        "the fullest host",
        "of the mean\nh0 ",
    ):
        assert text in page

    plain = url.replace("?", "/run/plain?")
    found = json.loads(run("info", plain, "--json")[1])
    assert (found["layout"], found["length"], found["parts"], found["blocks"]) == ("ordinary", 1000, [], 1)
    assert (len(found["hosts"]), len(found["idle_hosts"]), found["balance"]) == (1, 3, 4.0)
    page = run("info", plain)[1]
    assert "ordinary: one file that every client reads" in page
    assert f"1 of 4 live ones; nothing on {', '.join(found['idle_hosts'])}\n" in page
    assert "1.0 KiB        400 %\n" in page
    code, _, err = run("info", url.replace("?", "/run?"))
    assert (code, "is a directory; name a file" in err) == (3, True)
    StripedStore(store).close()


def test_info_of_blocks_that_are_nowhere_or_too_few(place: Place) -> None:
    class Spread(WrappedStore):
        NAME = "spread"

        def hosts(self) -> Sequence[Host]:
            return [Host(f"h{number}") for number in range(8)] + [Host("dead", live=False)]

        def handle(self, path: bytes, inner: Handle) -> Handle:
            return Located(inner)

        def stat(self, path: bytes) -> Status:
            return dataclasses.replace(super().stat(path), replication=2, block_size=10)

    class Located(WrappedHandle):
        def locate(self, offset: int, length: int) -> Sequence[Block]:
            hosts = [("h0", "h1"), (), ("h0",), ()]
            return [Block(10 * number, 10, names) for number, names in enumerate(hosts)]

    place.file("file", bytes(40))
    facts = gather(StripedStore(Spread(place.store)), b"/file")
    assert facts.trouble == ["2 of 4 blocks lie on no live data host, the first at byte 10"]
    page = describe(facts)
    assert "blocks       4, of 10 B at most\n" in page
    assert "replication  2; 3 of 4 blocks have less\n" in page
    assert "2 of 8 live ones; nothing on h2, h3, h4, h5 and 2 more\n" in page
    assert "balance      5.33, " in page


def test_info_of_a_file_with_missing_parts(place: Place, run: Run) -> None:
    place.striped("d/striped", version(9), b"x" * 3 * UNIT)
    (place.root / f".stripefs/{version(9)}/1").unlink()
    code, out, err = run("info", place.root / "d/striped")
    assert code == 3
    assert "striped: units of 4 KiB over 3 parts" in out
    assert err.startswith(f"stripefs: part {version(9)}/1: ")
