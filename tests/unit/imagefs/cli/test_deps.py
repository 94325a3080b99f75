"""`imagefs deps` on the snapshots in a store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imagefs.errors import DamagedObject, NoSuchSnapshot
from imagefs.format.documents import Snapshot, key_digest
from imagefs.repository.images import Images
from imagefs.repository.snapshots import Snapshots
from tests.support.images.stores import age, build_tree, files, write_tree
from tests.unit.imagefs.cli.conftest import Command

KEY = {"salt": "x"}


@pytest.fixture
def name(images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A snapshot in the store that the environment names."""
    report = build_tree(write_tree(tmp_path / "source", a=1), images, source=key_digest(KEY))
    Snapshots(images).put(Snapshot(KEY, report.digest, "host", ("/opt/deps",), 1700000000.0, 12.0, ("a line",)))
    monkeypatch.setenv("IMAGEFS_STORE", str(tmp_path / "store"))
    return key_digest(KEY)


def said(imagefs: Command, *arguments: str, code: int = 0) -> str:
    found, out, err = imagefs.run("deps", *arguments)
    assert found == code
    return out + err


def test_ls_and_inspect(imagefs: Command, images: Images, name: str) -> None:
    assert name[:12] in said(imagefs, "ls")
    assert "/opt/deps" in said(imagefs, "ls")
    (row,) = imagefs.json("deps", "ls")
    assert (row["name"], row["targets"], row["seconds"], row["error"]) == (name, ["/opt/deps"], 12.0, "")
    assert images.has(row["image"])
    assert row["size"] > 300_000
    assert "a line" in said(imagefs, "inspect", name[:6])
    assert imagefs.json("deps", "inspect", name)["key"] == KEY
    assert "no dependency snapshot" in said(imagefs, "inspect", "beef", code=NoSuchSnapshot.exit_code)


def test_a_document_that_speaks_to_terminals(imagefs: Command, images: Images, tmp_path: Path, name: str) -> None:
    """Or has a path that is no text."""
    document = tmp_path / "store/deps" / name
    told = json.loads(document.read_text())
    told |= {"targets": ["/opt/\x1b[2Jcaf\udce9"], "findings": ["\x07\x9b1m"]}
    document.write_text(json.dumps(told))
    for words in (["ls"], ["inspect", name]):
        assert all(char.isprintable() or char == "\n" for char in said(imagefs, *words))
        assert "/opt/\\x1b[2Jcaf\\udce9" in said(imagefs, *words)
    assert imagefs.json("deps", "inspect", name)["targets"] == told["targets"]


def test_verify(imagefs: Command, tmp_path: Path, name: str) -> None:
    assert "all is well" in said(imagefs, "verify", name[:12])
    assert imagefs.json("deps", "verify", name)["damage"] == []
    (pack,) = files(tmp_path / "store", "packs")
    pack.write_bytes(pack.read_bytes()[:-1] + b"x")
    assert f"deps rm {name[:12]}" in said(imagefs, "verify", name, code=DamagedObject.exit_code)


def test_rm_and_gc(imagefs: Command, images: Images, tmp_path: Path, name: str) -> None:
    assert said(imagefs, "gc") == ""
    snapshot, (image,) = Snapshots(images).load(name), images.images()
    assert imagefs.json("deps", "rm", name[:12]) == {"snapshots": [name], "images": [image]}
    assert (said(imagefs, "ls"), images.images()) == ("", {})
    build_tree(tmp_path / "source", images, source=name)
    Snapshots(images).put(snapshot)
    age(files(tmp_path / "store"), 31 * 24)
    assert f"snapshot {name}\n" in said(imagefs, "gc", "--dry-run")
    assert imagefs.json("deps", "gc", "--older-than", "40d") == {"snapshots": [], "images": []}
    assert f"snapshot {name}\n" in said(imagefs, "gc")
    assert images.images() == {}
    assert "--older-than" in said(imagefs, "gc", "--older-than", "soon", code=2)


def test_a_store_must_be_named(imagefs: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IMAGEFS_STORE", raising=False)
    assert "IMAGEFS_STORE" in said(imagefs, "ls", code=2)
    assert "did you mean ls?" in said(imagefs, "lss", code=2)
