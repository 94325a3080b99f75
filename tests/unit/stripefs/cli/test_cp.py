"""`stripefs cp` from its arguments to what lies where, between local directories as stores and as what they are; where
something goes wrong: what is kept, what is told, and how the same command goes on."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import stripefs
from stripefs.api import engine
from stripefs.api.file_reader import ReadFile
from stripefs.copy import copier
from stripefs.copy import output as copy_output
from tests.support.python_api import LAYOUTS, MIB, content, names, spread
from tests.unit.stripefs.cli.conftest import Run

DATA = content(20 * MIB + 5)


@pytest.fixture
def cp(run: Run) -> Run:
    return lambda *words: run("cp", *words)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Plain files of this host."""
    path = tmp_path / "source"
    (path / "deep" / "empty").mkdir(parents=True)
    (path / "model").write_bytes(DATA)
    (path / "deep" / "config").write_bytes(b"{}")
    (path / "deep" / "zero").touch()
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    path.mkdir()
    return path


def files(root: Path) -> dict[str, bytes]:
    """The content of the files below a directory, hidden ones and all, by path."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def told(cp: Run, *words: object) -> dict[str, object]:
    code, out, err = cp("--json", *words)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["trouble"] == []
    return {name: found[name] for name in ("files", "copied", "copied_bytes", "resumed_bytes", "skipped")}


# -- destinations


@pytest.mark.parametrize("layout", LAYOUTS)
def test_to_a_store_and_back(cp: Run, source: Path, store: Path, tmp_path: Path, layout: str) -> None:
    url = spread(store)
    code, out, err = cp("-r", "--layout", layout, "--unit", "1MiB", source, url)
    assert (code, err) == (0, "")
    assert out.startswith("3 of 3 files copied, 20.0 MiB at ")
    assert out.endswith(", compared with what is stored\n")
    fs = stripefs.connect(url)
    assert fs.read_bytes("source/model") == DATA
    assert fs.listdir("source/deep") == ["config", "empty", "zero"]
    assert ((store / "source/model").stat().st_size < 65536) == (layout == "striped")
    assert told(cp, "-r", store / "source", tmp_path / "back") == {
        "files": 3, "copied": 3, "copied_bytes": len(DATA) + 2, "resumed_bytes": 0, "skipped": 0,
    }  # fmt: skip
    assert cp("-rT", store / "source", tmp_path / "back")[0] == 0  # in the place of what is there
    assert files(tmp_path / "back") == files(source)
    assert (tmp_path / "back" / "deep" / "empty").is_dir()


def test_from_store_to_store(cp: Run, source: Path, store: Path) -> None:
    (store / "one").mkdir()
    (store / "two").mkdir()
    assert cp("--root", f"file://{store}/one", "--layout", "striped", source / "model", f"{store}/one/")[0] == 0
    assert (store / "one" / ".stripefs").is_dir()
    assert cp(f"file://{store}/one/model", f"file://{store}/two/new")[0] == 0
    assert files(store / "two") == {"new": DATA}
    assert cp(source / "deep" / "config", source / "deep" / "zero", f"{store}/new/deep/")[0] == 0
    assert files(store / "new") == {"deep/config": b"{}", "deep/zero": b""}


def test_cp_says_where_parts_would_lie(cp: Run, source: Path, store: Path) -> None:
    code, out, err = cp("--layout", "striped", source / "model", f"file://{store}/")
    assert code == 3
    assert "no directory above this one has a pool of parts; give the directory that is mounted" in err
    assert "--root" in err
    code, out, err = cp("--layout", "striped", source / "model", store)
    assert (code, out) == (2, "")
    assert f"name it as a store: file://{store}" in err


def test_a_link_is_what_it_leads_to(cp: Run, source: Path, store: Path, tmp_path: Path) -> None:
    (source / "link").symlink_to("model")
    (source / "folder").symlink_to("deep")
    (source / "deep" / "up").symlink_to("..")
    (source / "lost").symlink_to("nowhere")
    os.mkfifo(source / "pipe")
    code, _, err = cp("-r", source, store / "copy")
    assert code == 3
    said = sorted(line.removeprefix(f"stripefs: {source}/") for line in err.splitlines())
    assert said == [
        "deep/up: it is a link to a directory that it lies in",
        "deep/up: it is a link to a directory that it lies in",
        "lost: it is a link that leads nowhere",
        "pipe: it is no regular file",
    ]
    found = files(store / "copy")
    assert (found["link"], found["model"], found["folder/config"]) == (DATA, DATA, b"{}")
    (tmp_path / "name").symlink_to(store / "copy")
    assert cp(source / "deep" / "config", tmp_path / "name")[0] == 0
    assert (store / "copy" / "config").read_bytes() == b"{}"
    (tmp_path / "file").symlink_to(store / "copy" / "config")
    assert cp(source / "model", tmp_path / "file")[0] == 0
    assert (store / "copy" / "config").read_bytes() == DATA


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["{source}/model"], 2, "where to"),
        (["{source}/none", "{store}"], 3, "{source}/none: No such file or directory"),
        (["{source}/deep", "{store}"], 3, "is a directory; -r copies directories"),
        (["{source}/model", "{source}"], 3, "onto itself"),
        (["{source}/model", "file://{source}/model"], 3, "onto itself"),
        (["{source}/model", "{source}/deep/config", "{store}/file"], 2, "to have it made"),
        (
            ["{source}/model", "{store}/none/file"],
            3,
            "cannot copy {source}/model to {store}/none/file: {store}/none: No such",
        ),
        (["{source}/model", "/dev/null"], 2, "stripefs cat"),
        (["{source}/model", "hdfs+x://y"], 2, "unknown"),
    ],
)
def test_misuse_is_one_line(cp: Run, source: Path, store: Path, words: list[str], code: int, said: str) -> None:
    found, _, err = cp(*(word.format(source=source, store=store) for word in words))
    assert (found, err.count("\n")) == (code, 1)
    assert said.format(source=source, store=store) in err
    assert names(store) == set()


# -- attributes of a copy


def test_modes_and_times(cp: Run, source: Path, store: Path) -> None:
    os.chmod(source / "model", 0o755)
    os.utime(source / "model", ns=(5, 1_500_000_000_123_456_789))
    os.chmod(source / "deep", 0o711)
    os.utime(source / "deep", ns=(5, 1_400_000_000_000_000_000))
    (store / "there").mkdir()
    (store / "there" / "model").touch(mode=0o604)
    before = os.umask(0o027)
    try:
        for url in (str(store / "local"), f"file://{store}/stored"):
            assert cp("-r", source, url)[0] == 0
        assert cp(source / "model", store / "there")[0] == 0
        for url in (str(store / "local-p"), f"file://{store}/stored-p"):
            assert cp("-rp", source, url)[0] == 0
    finally:
        os.umask(before)

    def mode(name: str) -> int:
        return (store / name).stat().st_mode & 0o7777

    assert [mode(f"{name}/model") for name in ("local", "stored", "there", "local-p", "stored-p")] == [
        0o750, 0o750, 0o604, 0o755, 0o755,
    ]  # fmt: skip
    assert [mode(f"{name}/deep") for name in ("local", "stored", "local-p", "stored-p")] == [
        0o710, 0o710, 0o711, 0o711,
    ]  # fmt: skip
    for name in ("local-p", "stored-p"):
        assert (store / name / "model").stat().st_mtime_ns == 1_500_000_000_123_456_789
        assert (store / name / "deep").stat().st_mtime_ns == 1_400_000_000_000_000_000
    assert (store / "local" / "model").stat().st_mtime_ns > 1_600_000_000_000_000_000


# -- messages


def test_progress_shows_on_a_terminal_only(cp: Run, source: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cp(source / "model", store)[2] == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code, _, err = cp(source / "model", store)
    assert code == 0
    assert err.startswith("\r")
    assert " of 20.0 MiB at " in err
    assert err.endswith("\r\x1b[K")


def test_a_copy_of_nothing_says_what_is_left_out(cp: Run, tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / ".model.stripefs-lock").write_bytes(b"x")
    code, out, err = cp("-r", tmp_path / "hidden", tmp_path / "copy")
    assert (code, err) == (0, "")
    assert out == (
        "nothing was copied: there are no files, apart from names that stripefs keeps for itself (.stripefs, …)\n"
    )


# -- trouble


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


@pytest.mark.parametrize(
    "calls",
    [
        [("--no-compare", 0), ("", 0), ("--no-compare", 3), ("", 3)],
        [("", 0), ("-p", 0), ("", 3), ("-p", 3)],
    ],
    ids=["compared", "looks"],
)
def test_what_an_earlier_copy_lacks_is_copied_again_to_get_it(
    cp: Run, source: Path, store: Path, calls: list[tuple[str, int]]
) -> None:
    (source / "lost").symlink_to("nowhere")
    os.utime(source / "model", (1, 2))
    for word, skipped in calls:
        code, out, _ = cp("-r", "--json", *word.split(), source, store / "copy")
        assert (code, json.loads(out)["skipped"]) == (3, skipped)
    assert ((store / "copy" / "model").stat().st_mtime == 2) == (calls[-1][0] == "-p")
    text = cp("-r", "--no-compare", source / "deep", store / "other")[1]
    assert text.endswith("not compared with what is stored\n")


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


def test_what_is_stored_wrong_is_no_copy(cp: Run, source: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = f"file://{store}/"
    read = ReadFile.pread_into

    def wrong(self: ReadFile, buffer: memoryview, offset: int) -> int:
        size = read(self, buffer, offset)
        if "store" in self.name and offset:
            buffer[MIB] ^= 1
        return size

    monkeypatch.setattr(ReadFile, "pread_into", wrong)
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


@pytest.fixture
def broken_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Writes of local files from 16 MiB on fail with this error, or work again with 0."""
    write = os.pwrite

    def harm(number: int) -> None:
        def broken(file: int, data: memoryview, offset: int) -> int:
            if number and offset == 16 * MIB:
                raise OSError(number, os.strerror(number))
            return write(file, data, offset)

        monkeypatch.setattr(os, "pwrite", broken)

    return harm


def test_a_disk_that_is_full(cp: Run, source: Path, store: Path, broken_disk: Callable[[int], None]) -> None:
    broken_disk(errno.ENOSPC)
    code, _, err = cp("-r", source, store / "copy")
    said = f"stripefs: cannot copy {source}/model to {store}/copy/model: No space left on device\n"
    assert (code, err) == (3, said)
    assert {name for name in names(store / "copy") if "stripefs" not in name} == {
        "deep", "deep/config", "deep/empty", "deep/zero",
    }  # fmt: skip
    assert not (store / "copy" / ".model.stripefs-copy").exists()


def test_a_disk_that_fails_leaves_what_can_be_gone_on_with(
    cp: Run, source: Path, store: Path, broken_disk: Callable[[int], None]
) -> None:
    broken_disk(errno.EIO)
    code, _, err = cp(source / "model", store)
    kept = store / ".model.stripefs-copy"
    said = f"stripefs: cannot copy {source}/model to {store}/model: Input/output error; "
    assert (code, err.startswith(said), str(kept) in err) == (3, True, True)
    assert os.listdir(store) == [kept.name]
    broken_disk(0)
    found = told(cp, source / "model", store)
    assert (found["copied_bytes"], found["resumed_bytes"]) == (len(DATA) - 16 * MIB, 16 * MIB)
    assert files(store) == {"model": DATA}
