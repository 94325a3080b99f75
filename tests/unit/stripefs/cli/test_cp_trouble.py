"""`stripefs cp` where something goes wrong: what is kept, what is told, and how the same command goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import stripefs
from stripefs.api import engine
from stripefs.api.file_reader import ReadFile
from stripefs.copy import copier
from stripefs.copy import output as copy_output
from tests.support.python_api import MIB, names
from tests.unit.stripefs.cli.copying import DATA, Run, cp, files, source, store, told

__all__ = ["cp", "source", "store"]


def spoil(store: Path) -> Path:
    """A byte of a part of a striped file is another one; answers the part."""
    part = min((store / ".stripefs").glob("*/0"))
    with part.open("r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))
    return part


def test_others_go_on_and_the_same_command_goes_on(cp: Run, source: Path, store: Path, tmp_path: Path) -> None:
    fs = stripefs.connect(str(store), layout="striped", unit="1MiB")
    fs.write_bytes("model", DATA)
    for number in range(5):
        fs.write_bytes(f"small{number}", b"x" * number)
    engine.stop()
    part = spoil(store)
    copy = tmp_path / "copy"
    code, out, err = cp("-r", store, copy)
    assert code == 3
    assert err.startswith(f"stripefs: cannot copy {store}/model to {copy}/model: ")
    assert "does not fit its checksum" in err
    assert err.count("\n") == 1
    assert out.startswith("5 of 6 files copied")
    assert {name: data for name, data in files(copy).items() if name[0] != "."} == {
        f"small{number}": b"x" * number for number in range(5)
    }
    spoil(store)  # it is as it was
    assert part.exists()
    found = told(cp, "-r", store, copy)
    assert (found["files"], found["copied"], found["skipped"]) == (6, 1, 5)
    assert set(files(copy)) == {"model", *(f"small{number}" for number in range(5))}
    assert (copy / "model").read_bytes() == DATA
    assert told(cp, "-r", store, copy)["copied"] == 6  # as cp does: below the directory that is there by now
    assert (copy / "store" / "model").read_bytes() == DATA


@pytest.mark.parametrize("remote", [False, True])
def test_what_has_changed_since_is_copied_again(cp: Run, source: Path, store: Path, remote: bool) -> None:
    target = f"file://{store}/copy" if remote else str(store / "copy")
    (source / "lost").symlink_to("nowhere")
    assert cp("-r", source, target)[0] == 3
    assert cp("-r", "--json", source, target)[0] == 3
    (source / "deep" / "config").write_bytes(b"[]")
    (store / "copy" / "deep" / "zero").write_bytes(b"not this")
    code, out, _ = cp("-r", "--json", source, target)
    found = json.loads(out)
    assert (code, found["copied"], found["skipped"]) == (3, 2, 1)
    (source / "lost").unlink()
    assert told(cp, "-r", source, target)["skipped"] == 3
    assert files(store / "copy") == files(source)


def test_what_was_not_compared_is_copied_again_to_be(cp: Run, source: Path, store: Path) -> None:
    (source / "lost").symlink_to("nowhere")
    code, out, _ = cp("-r", "--no-compare", source, store / "copy")
    assert (code, out.endswith("not compared with what is stored\n")) == (3, True)
    for words, skipped in (([], 0), (["--no-compare"], 3), ([], 3)):
        assert json.loads(cp("-r", "--json", *words, source, store / "copy")[1])["skipped"] == skipped


def test_what_did_not_get_its_looks_is_copied_again_to_get_them(cp: Run, source: Path, store: Path) -> None:
    (source / "lost").symlink_to("nowhere")
    os.utime(source / "model", (1, 2))
    for words, skipped in (([], 0), (["-p"], 0), ([], 3), (["-p"], 3)):
        assert json.loads(cp("-r", "--json", *words, source, store / "copy")[1])["skipped"] == skipped
    assert (store / "copy" / "model").stat().st_mtime == 2


@pytest.mark.parametrize("remote", [False, True])
def test_a_source_that_changes_is_not_copied(
    cp: Run, source: Path, store: Path, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    target = f"file://{store}/" if remote else f"{store}/"
    move = copier.Copier._move

    def change(self: copier.Copier, file: ReadFile, output: copy_output.Output) -> None:
        move(self, file, output)
        (source / "new").write_bytes(DATA[::-1])
        (source / "new").rename(source / "model")
        (source / "deep" / "config").unlink(missing_ok=True)

    monkeypatch.setattr(copier.Copier, "_move", change)
    code, _, err = cp("-j", "1", source / "model", source / "deep" / "config", source / "deep" / "zero", target)
    assert code == 3
    first, second = err.splitlines()
    model, config = source / "model", source / "deep" / "config"
    assert first == f"stripefs: cannot copy {model} to {store}/model: it was replaced or changed while it was copied"
    assert second.startswith(f"stripefs: cannot copy {config} to {store}/config: ")
    assert [name for name in os.listdir(store) if not name.startswith("..")] == ["zero"]


@pytest.mark.parametrize("remote", [False, True])
def test_what_is_stored_wrong_is_no_copy(
    cp: Run, source: Path, store: Path, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    target = f"file://{store}/" if remote else f"{store}/"
    if remote:
        read = ReadFile.pread_into

        def wrong(self: ReadFile, buffer: memoryview, offset: int) -> int:
            size = read(self, buffer, offset)
            if "store" in self.name and offset:
                buffer[MIB] ^= 1
            return size

        monkeypatch.setattr(ReadFile, "pread_into", wrong)
    else:
        sync = os.fdatasync

        def spoiling(file: int) -> None:
            sync(file)
            if os.fstat(file).st_size > len(DATA):
                os.pwrite(file, bytes([DATA[9 * MIB + 3] ^ 1]), 9 * MIB + 3)

        monkeypatch.setattr(os, "fdatasync", spoiling)
    code, _, err = cp(source / "model", source / "deep" / "config", target)
    assert code == 3
    assert f"from byte {9 * MIB} on" in err
    assert err.count("\n") == 1
    assert {name for name in os.listdir(store) if not name.startswith("..")} == {"config"}
    assert cp("--no-compare", source / "model", target)[0] == 0


@pytest.mark.parametrize("kind", ["space", "quota"])
def test_a_store_that_is_full(cp: Run, source: Path, store: Path, kind: str) -> None:
    url = f"faulty+file://{store}?rate=1&on=write&kinds={kind}"
    code, _, err = cp(source / "model", source / "deep" / "zero", url)
    assert code == 3
    assert err.startswith(f"stripefs: cannot copy {source}/model to faulty+file://{store}/model: an injected ")
    assert names(store) == {"zero"}


def test_a_disk_that_is_full(cp: Run, source: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite

    def full(file: int, data: memoryview, offset: int) -> int:
        if offset == 16 * MIB:
            raise OSError(28, "No space left on device")
        return write(file, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    code, _, err = cp("-r", source, store / "copy")
    said = f"stripefs: cannot copy {source}/model to {store}/copy/model: No space left on device\n"
    assert (code, err) == (3, said)
    assert {name for name in names(store / "copy") if "stripefs" not in name} == {
        "deep", "deep/config", "deep/empty", "deep/zero",
    }  # fmt: skip
    assert not (store / "copy" / ".model.stripefs-copy").exists()


def test_a_disk_that_fails_leaves_what_can_be_gone_on_with(
    cp: Run, source: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite

    def broken(file: int, data: memoryview, offset: int) -> int:
        if offset == 16 * MIB:
            raise OSError(5, "Input/output error")
        return write(file, data, offset)

    monkeypatch.setattr(os, "pwrite", broken)
    code, _, err = cp(source / "model", store)
    kept = store / ".model.stripefs-copy"
    assert (code, err) == (
        3,
        f"stripefs: cannot copy {source}/model to {store}/model: Input/output error; "
        f"what has come of it is kept in {kept}; the same command goes on from there\n",
    )
    assert os.listdir(store) == [kept.name]
    monkeypatch.setattr(os, "pwrite", write)
    found = told(cp, source / "model", store)
    assert (found["copied_bytes"], found["resumed_bytes"]) == (len(DATA) - 16 * MIB, 16 * MIB)
    assert files(store) == {"model": DATA}


def test_a_busy_file_is_refused_by_name(cp: Run, source: Path, store: Path) -> None:
    writer = stripefs.open(f"{store}/model", "wb")
    code, _, err = cp(source / "model", source / "deep" / "config", f"file://{store}")
    writer.discard()
    assert code == 3
    assert err.startswith(f"stripefs: cannot copy {source}/model to {store}/model: ")
    assert "is being written" in err
    assert names(store) == {"config"}
