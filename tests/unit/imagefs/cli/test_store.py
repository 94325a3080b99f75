"""Building into a store and looking after it, by the command."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.support.images.layers import directory, file, layer, layout
from tests.support.images.stores import age, files, write_tree
from tests.unit.imagefs.cli.conftest import Command


@pytest.fixture(autouse=True)
def no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("IMAGEFS_TMP", str(tmp_path / "tmp"))


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "new/store")


def test_a_directory_into_a_new_store(imagefs: Command, store: str, tmp_path: Path) -> None:
    source = write_tree(tmp_path / "source", a=1, b=2)
    first = imagefs.json("build", f"dir:{source}", store, "--tag", "app")
    assert first["store"] == store
    assert first["built"]["files"] == 3
    assert first["built"]["new_bytes"] == first["built"]["stored_bytes"] == 600_000
    again = imagefs.json("build", f"dir:{source}", store, "--tag", "app")
    assert (again["digest"], again["built"]["new_bytes"]) == (first["digest"], 0)
    assert imagefs("build", f"dir:{source}", store, "--quiet") == first["digest"] + "\n"
    text = imagefs("build", f"dir:{source}", store, "--tag", "other")
    assert f"{store}#other" in text
    assert first["digest"] in text
    assert [(row["tags"], row["digest"]) for row in imagefs.json("ls", store)] == [(["app", "other"], first["digest"])]


def test_an_image_layout(imagefs: Command, store: str, tmp_path: Path) -> None:
    lower = layer(directory("etc"), file("etc/a", b"lower" * 900), file("gone", b"x" * 5000))
    upper = layer(file("etc/a", b"upper" * 900), file(".wh.gone"))
    folder = layout(tmp_path / "layout", [lower, upper], ["gzip", "zstd"])
    made = imagefs.json("build", f"oci:{folder}:app", store, "--tag", "app")
    assert imagefs.json("build", f"oci:{folder}", store)["digest"] == made["digest"]
    facts = imagefs.json("inspect", f"{store}#app")
    assert facts["config"]["rootfs"]["type"] == "layers"
    assert facts["source"].startswith("sha256:")
    (row,) = imagefs.json("ls", store)
    assert (row["platform"], row["source"]) == ("linux/amd64", facts["source"])
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize(
    ("flag", "value", "what"),
    [
        ("--max-layers", "1", "layers"),
        ("--max-entries", "2", "--max-entries"),
        ("--max-layer-size", "10k", "--max-layer-size"),
        ("--max-path", "3", "a name of 5 bytes"),
        ("--max-size", "5k", "--max-size"),
    ],
)
def test_limits(imagefs: Command, store: str, tmp_path: Path, flag: str, value: str, what: str) -> None:
    lower, upper = layer(file("a", b"x" * 9000), file("b")), layer(file("c/d/e"))
    folder = layout(tmp_path / "layout", [lower, upper])
    code, out, err = imagefs.run("build", f"oci:{folder}", store, flag, value)
    assert (code, out) == (4, "")
    assert what in err
    assert not list((tmp_path / "tmp").iterdir())
    assert imagefs.json("ls", store) == []


def test_what_a_killed_build_left_is_swept_and_what_a_running_one_needs_is_not(
    imagefs: Command, store: str, tmp_path: Path
) -> None:
    from imagefs.build.pipeline import scratch

    folder = layout(tmp_path / "layout", [layer(file("a", b"x" * 9000))])
    (tmp_path / "tmp/build-killed").mkdir(parents=True)
    (tmp_path / "tmp/build-killed/0.tar").write_bytes(b"x")
    with scratch(tmp_path / "tmp") as running:
        imagefs("build", f"oci:{folder}", store)
        assert list((tmp_path / "tmp").iterdir()) == [running]
    assert not list((tmp_path / "tmp").iterdir())


def test_ls(imagefs: Command, store: str, tmp_path: Path) -> None:
    digests = []
    for seed, tag in ((1, "one"), (2, ""), (3, "three")):
        source = write_tree(tmp_path / f"source{seed}", a=seed)
        digests.append(imagefs("build", f"dir:{source}", store, "-q", *(("-t", tag) if tag else ())).strip())
    heads, *lines = imagefs("ls", store).splitlines()
    assert heads.split() == ["TAG", "IMAGE", "STORED", "SIZE", "PLATFORM", "FROM"]
    assert [line.split()[:2] for line in lines] == [
        ["one", digests[0][:12]],
        ["three", digests[2][:12]],
        ["-", digests[1][:12]],
    ]
    (Path(store) / "images" / digests[1]).write_text("{}")
    assert "holds other bytes" in imagefs("ls", store).splitlines()[-1]
    (Path(store) / "tags/bad").write_text("nonsense")
    assert imagefs.run("ls", store)[0] == 5
    assert imagefs("rm", f"{store}#bad") == "tag bad\n"
    imagefs("ls", store)


def test_inspect(imagefs: Command, store: str, tmp_path: Path) -> None:
    one = imagefs.json("build", f"dir:{write_tree(tmp_path / 'one', a=1)}", store, "-t", "one")
    imagefs("build", f"dir:{write_tree(tmp_path / 'both', a=1, b=2)}", store, "-t", "both")
    facts = imagefs.json("inspect", f"{store}#both")
    assert facts["blocks"] == {"total": 6, "stored": 6, "zeros": 0, "stored_bytes": 600_000}
    assert [pack["used_bytes"] for pack in facts["packs"]] == [300_000, 300_000]
    assert facts["devices"][0]["tag"] == "cold"
    assert facts["sharing"] == [{"image": one["digest"], "tags": ["one"], "blocks": 3, "bytes": 300_000}]
    assert "sharing" not in imagefs.json("inspect", f"{store}#both", "--no-sharing")
    text = imagefs("inspect", f"{store}#{facts['digest'][:12]}")
    for part in (facts["digest"], "DEVICE", "PACK", "SHARED WITH", one["digest"], "config"):
        assert part in text


def test_verify(imagefs: Command, store: str, tmp_path: Path) -> None:
    source = write_tree(tmp_path / "source", a=1)
    digest = imagefs("build", f"dir:{source}", store, "-t", "app", "-q").strip()
    assert imagefs("verify", store).endswith("all is well\n")
    assert imagefs("verify", f"{store}#app", "-q") == ""
    (pack,) = files(Path(store), "packs")
    pack.write_bytes(pack.read_bytes()[:-1] + b"?")
    code, out, err = imagefs.run("verify", f"{store}#app")
    assert code == 5
    assert f"packs/{pack.parent.name}/{pack.name}: holds other bytes" in out
    assert digest[:12] in out
    assert err.startswith(f"imagefs: {store}#app is damaged; --remove takes damaged objects away")
    code, out, _ = imagefs.run("verify", store, "--remove", "--json")
    assert (code, json.loads(out)["removed"]) == (5, [f"packs/{pack.parent.name}/{pack.name}"])
    assert not pack.exists()
    imagefs("build", f"dir:{source}", store, "-t", "app")
    imagefs("verify", store)


def test_rm_and_gc(imagefs: Command, store: str, tmp_path: Path) -> None:
    source = write_tree(tmp_path / "source", a=1)
    digest = imagefs("build", f"dir:{source}", store, "-t", "app", "-q").strip()
    imagefs("build", f"dir:{source}", store, "-t", "other")
    assert imagefs("rm", f"{store}#app") == "tag app\n"
    assert imagefs.json("rm", f"{store}#other") == {"tags": ["other"], "images": [digest]}
    assert "0 objects (0 B) removed; 4 (" in imagefs("gc", store)
    age(files(Path(store)), 25)
    listed = imagefs("gc", store, "--dry-run").splitlines()
    assert len(listed) == 5
    assert "4 objects" in listed[-1]
    assert imagefs.json("gc", store)["removed"] == listed[:-1]
    assert files(Path(store)) == []
    for tag in ("a", "b"):
        imagefs("build", f"dir:{source}", store, "-t", tag)
    assert imagefs("rm", f"{store}#{digest[:16]}") == f"tag a\ntag b\nimage {digest}\n"
    imagefs("build", f"dir:{source}", store)
    assert imagefs.json("gc", store, "--untagged", "--force", "--older-than", "1h")["removed"] == []
    assert len(imagefs.json("gc", store, "--untagged", "--force")["removed"]) == 5


def test_sigterm_takes_away_what_was_unpacked(
    imagefs: Command, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = layout(tmp_path / "layout", [layer(file("a", b"x" * 9000))])

    def interrupted(*_arguments: object, **_more: object) -> None:
        assert list((tmp_path / "tmp").glob("build-*/0.tar"))
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("imagefs.build.optimize.build_optimized", interrupted)
    before = signal.getsignal(signal.SIGTERM)
    code, out, err = imagefs.run("build", f"oci:{folder}", store, "-t", "app")
    assert (code, out, err.strip()) == (130, "", "imagefs: interrupted")
    assert not list((tmp_path / "tmp").iterdir())
    assert signal.getsignal(signal.SIGTERM) is before
    assert imagefs.json("ls", store) == []
