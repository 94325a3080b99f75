"""`imagefs deps key` and `imagefs deps diff`: what they print, and how they end; docs/deps.md on the key."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from imagefs.build.content import scan
from imagefs.build.image import build
from imagefs.cli.flags import REQUEST
from imagefs.cli.main import PROGRAM
from imagefs.deps.key import NAMES, Key
from imagefs.format.documents import Snapshot
from imagefs.repository.images import Images
from imagefs.repository.snapshots import Snapshots
from tests.golden.deps import KEY
from tests.support.checkout import CHECKOUT
from tests.support.deps.wheels import uv, wheel
from tests.unit.imagefs.conftest import images

__all__ = ["images"]

DOCS = CHECKOUT / "docs/deps.md"
INSTALLER = uv("--target", "/opt/deps", "--no-cache")
"""No key here depends on the installer, and pip takes ten times as long to resolve."""
INSTALL = [*INSTALLER, "six==1"]


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "requirements.txt").write_text("numpy==1.26.4\nsix>=1\n")
    monkeypatch.chdir(folder)
    for name, version in (("six", "1"), ("six", "2"), ("torch", "1"), ("numpy", "1.26.4")):
        wheel(tmp_path / "wheels", name, {}, version=version)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_", "IMAGEFS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("IMAGEFS_CACHE", str(tmp_path / "cache"))
    return folder


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert PROGRAM.main(["deps", *arguments]) == code
    told = capsys.readouterr()
    return told.out, told.err


def test_key_is_one_line(capsys: pytest.CaptureFixture[str], job: Path) -> None:
    flags = ["--target", "/opt/deps", "--allow-unpinned"]
    out, err = said(capsys, "key", *flags, "--", *INSTALLER, "-r", "requirements.txt")
    assert re.fullmatch(r"[0-9a-f]{64}\n", out)
    assert err == ""
    found = json.loads(said(capsys, "key", *flags, "--json", "--", *INSTALLER, "-r", f"{job}/requirements.txt")[0])
    assert f"{Key.from_document(found['key']).digest}\n" == f"{found['digest']}\n" == out
    assert found["open_ends"] == []


def test_open_ends_are_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["key", "--target", "/opt/deps", "--strict"]
    out, err = said(capsys, *flags, "--", *INSTALLER, "-r", "requirements.txt", "torch", code=2)
    assert out == ""
    first, second, last = err.splitlines()
    assert first.startswith("imagefs: command: torch: no one version")
    assert second.startswith("imagefs: requirements.txt:2: six>=1: no one version")
    assert last.startswith("imagefs: there is no key, since 2 of the inputs may change; --epoch")
    out, _ = said(capsys, *flags, "--explain", "--", *INSTALLER, "torch", code=2)
    assert re.search(r"^files +wheels/ [0-9a-f]{12}$", out, re.MULTILINE)
    found = json.loads(said(capsys, *flags, "--json", "--", *INSTALLER, "six", code=2)[0])
    assert found["digest"] == ""
    assert [(one["where"], one["what"]) for one in found["open_ends"]] == [("command", "six")]


def test_every_flag_decides(capsys: pytest.CaptureFixture[str], job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (job / "input").touch()
    (job / "list.txt").touch()
    monkeypatch.setenv("MAX_JOBS", "4")
    values = {
        "target": "/opt/other",
        "requirements": "list.txt",
        "input": "input",
        "env": "MAX_JOBS",
        "python": os.path.realpath(sys.executable),
        "cuda": "12",
        "driver": "550",
        "cpu-level": "x86-64-v1",
        "namespace": "team",
        "salt": "1",
        "epoch": "1",
    }
    assert [flag.name for flag in REQUEST] == [*values, "strict", "allow-unpinned"]
    plain = ["key", "--target", "/opt/deps", "--", *INSTALL]
    found = {said(capsys, *plain)[0]}
    for name, value in values.items():
        flags = [f"--{name}", value]
        found.add(said(capsys, "key", "--target", "/opt/deps", *flags, "--", *INSTALL)[0])
    assert len(found) >= len(values)  # of all, the level of the processor here may be the lowest


def test_a_target_may_be_spelled_in_many_ways(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The key depends on the place and not on its spelling."""
    place = tmp_path / "two  words" / "caf\udce9"
    place.mkdir(parents=True)
    (tmp_path / "link").symlink_to(place)
    spelled = [place, f"{place}/", f"{place}/../{place.name}", tmp_path / "link", f"{tmp_path}/link/.//"]
    keys = {said(capsys, "key", "--target", str(one), "--", *INSTALL)[0] for one in spelled}
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["key", "--", "true"], "there is no target"),
        (["key", "--target", "/opt/deps"], "Missing argument"),
        (["key", "--target", "/", "--", "true"], "no absolute path of a target"),
        (["key", "--target", "", "--", "true"], "--target names nothing"),
        (["key", "--target", "/opt/deps", "--env", "API_TOKEN", "--", "true"], "looks like a secret"),
        (["key", "--target", "/opt/deps", "--cpu-level", "v9", "--", "true"], "no CPU level"),
        (["key", "--target", "/opt/deps", "--python", "/none", "--", "true"], "/none cannot be run"),
        (["key", "--target", "/opt/deps", "--requirements", "none", "--", "true"], "none cannot be read"),
        (["diff", "none", "none"], "none is no file that is there"),
        (["diff", "requirements.txt", "requirements.txt"], "requirements.txt is no JSON"),
        (["diff", "abcdef", "abcdef"], "no store is named"),
    ],
)
def test_misuse_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], what: str) -> None:
    out, err = said(capsys, *arguments, code=2)
    assert (out, err.count("\n")) == ("", 1)
    assert what in err


def test_diff_of_two_keys(capsys: pytest.CaptureFixture[str], job: Path) -> None:
    other = Key({**KEY.components, "salt": "s", "files": {"new.txt": "ab" * 32}, "environment": {}})
    (job / "a.json").write_bytes(KEY.to_json())
    (job / "b.json").write_text(json.dumps({"digest": other.digest, "key": other.to_document(), "open_ends": []}))
    out, _ = said(capsys, "diff", "a.json", "b.json")
    assert out.splitlines() == [
        "- key environment.CUDAARCHS: none",
        "- key files.requirements.txt: 5f5f5f5f5f5f",
        "+ key files.new.txt: abababababab",
        "~ key salt: none -> s",
    ]
    assert said(capsys, "diff", "a.json", "a.json")[0] == "nothing differs\n"
    found = json.loads(said(capsys, "diff", "--json", "a.json", "b.json")[0])
    assert found["key"]["changed"] == {"salt": ["", "s"]}
    assert found["files"] is None
    (job / "b.json").write_text("7")
    assert "not the document of a key" in said(capsys, "diff", "a.json", "b.json", code=4)[1]


def make(folder: Path) -> Path:
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg/small.py").write_text("x = 1\n")
    (folder / "pkg/large.so").write_bytes(bytes(range(256)) * 1000)
    (folder / "pkg/gone").touch()
    (folder / "link").symlink_to("pkg/small.py")
    os.link(folder / "pkg/small.py", folder / "again.py")
    return folder


def test_diff_of_two_snapshots(
    capsys: pytest.CaptureFixture[str], images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make(tmp_path / "first"), make(tmp_path / "second")
    same = make(tmp_path / "same")
    os.utime(same / "pkg/small.py", (0, 0))
    data = bytearray((second / "pkg/large.so").read_bytes())
    data[200_000] ^= 1
    (second / "pkg/large.so").write_bytes(data)
    (second / "pkg/gone").unlink()
    (second / "pkg/new").mkdir()
    (second / "again.py").chmod(0o755)
    (second / "link").unlink()
    (second / "link").symlink_to("pkg")
    names = []
    for number, folder in enumerate((first, second, same)):
        key = Key({**KEY.components, "salt": str(number)})
        report = build(*scan(str(folder)), images, source=key.digest)
        Snapshots(images).put(Snapshot(key.to_document(), report.digest, "host", ("/opt/deps",), 0.0, 1.0))
        names.append(key.digest[:12])
        shutil.rmtree(folder)
    monkeypatch.setenv("IMAGEFS_STORE", str(tmp_path / "store"))
    lines = said(capsys, "diff", names[0], names[1])[0].splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        "~ key salt",
        "- file pkg/gone",
        "+ file pkg/new",
        "~ file again.py",
        "~ file link",
        "~ file pkg/large.so",
        "~ file pkg/small.py",
    ]
    assert "~ file link: link 0777 0:0 pkg/small.py -> link 0777 0:0 pkg" in lines
    assert said(capsys, "diff", names[0], names[2])[0] == "~ key salt: 0 -> 2\n"
    found = json.loads(said(capsys, "diff", "--json", names[0], names[1])[0])
    assert list(found["files"]["removed"]) == ["pkg/gone"]


def test_the_document_on_the_key_has_every_component_in_its_order() -> None:
    section = DOCS.read_text().split("| component | content |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(NAMES)


def test_the_document_on_the_key_names_every_flag() -> None:
    text = DOCS.read_text().split("\n## The key\n")[1].split("\n## ")[0]
    known = {f"--{flag.name}" for flag in REQUEST} | {"--explain", "--json", "--resolve-age"}
    assert known <= set(re.findall(r"--[a-z][a-z-]*", text))
