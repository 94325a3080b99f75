"""`stripefs ls`, `cat`, `rm` and `du`, from their arguments to what they print, on local directories."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import stripefs
from stripefs.cli.main import PROGRAM
from tests.contract import commands as command_conformance
from tests.support.checkout import CHECKOUT
from tests.support.python_api import MIB, content, names
from tests.support.waiting import eventually
from tests.unit.stripefs.cli.conftest import Run

DATA = content(20 * MIB)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A source with a striped file, small ones, and what writers hide."""
    path = tmp_path / "source"
    path.mkdir()
    fs = stripefs.connect(str(path), layout="striped", unit="1MiB")
    fs.mkdir("step-1/deep", parents=True)
    fs.write_bytes("step-1/model", DATA)
    (path / "step-1" / "deep" / "config").write_bytes(b"{}")
    (path / "step-1" / ".model.stripefs-0123456789abcdef-0").write_bytes(b"left")
    (path / "empty").touch(mode=0o600)
    os.utime(path / "empty", (0, 86400))
    return path


@pytest.mark.parametrize(
    "url",
    [
        "hdfs://me:pa55word@127.0.0.1:1/file",
        "hdfs://me:pa55word@no name/file",
        "throttled+file:///none/file?password=pa55word",
        "s3://bucket/file?secret-key=pa55word",
    ],
)
@pytest.mark.parametrize("words", [["ls"], ["cat"], ["rm"], ["du"], ["cp", "-r", "URL", "/none/copy"]])
def test_passwords_are_not_told(run: Run, words: list[str], url: str) -> None:
    given = [url if word == "URL" else word for word in words]
    code, out, err = run(*(given if url in given else [*given, url]))
    assert code in (2, 3)
    assert "***" in err or "parameter" in err
    assert "pa55word" not in out + err
    assert err.count("\n") == 1


# -- ls


def test_ls(run: Run, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    assert run("ls", source) == (0, "empty\nstep-1\n", "")
    assert run("ls", source / "step-1" / "model") == (0, f"{source}/step-1/model\n", "")
    code, out, err = run("ls", "-l", source / "empty")
    owner = f"{os.getuid()}  {os.getgid()}"
    assert (code, out, err) == (0, f"-rw-------  {owner}  0  1970-01-02 00:00  {source}/empty\n", "")
    code, out, _ = run("ls", "-lh", source / "step-1")
    assert [line.split()[0] for line in out.splitlines()] == ["drwxr-xr-x", "-rw-r--r--"]
    assert "  20 MiB  " in out
    code, out, _ = run("ls", "-R", source)
    deep = f"\n{source}/step-1/deep:\nconfig\n"
    assert (code, out) == (0, f"{source}:\nempty\nstep-1\n\n{source}/step-1:\ndeep\nmodel\n{deep}")


def test_ls_json(run: Run, source: Path) -> None:
    code, out, _ = run("ls", "-R", "--json", f"file://{source}")
    entries = {entry["path"]: entry for entry in json.loads(out)["entries"]}
    assert code == 0
    assert list(entries) == [
        f"{source}/{name}" for name in ("empty", "step-1", "step-1/deep", "step-1/model", "step-1/deep/config")
    ]
    model = entries[f"{source}/step-1/model"]
    assert (model["name"], model["type"], model["size"], model["mode"]) == ("model", "file", len(DATA), "0644")
    assert model["version"].startswith(f"{len(DATA)}:")


def test_ls_goes_on(run: Run, source: Path) -> None:
    code, out, err = run("ls", source / "none", source / "step-1" / "deep", source / ".stripefs")
    assert code == 3
    assert out == f"{source}/step-1/deep:\nconfig\n"
    assert err.splitlines() == [
        f"stripefs: {source}/none: No such file or directory",
        f"stripefs: {source}/.stripefs: no such name",
    ]
    (source / "link").symlink_to("step-1")
    assert run("ls", source / "link")[1] == "deep\nmodel\n"


@pytest.mark.parametrize("command", ["ls", "cat", "rm", "du"])
def test_a_url_that_means_nothing_is_misuse(run: Run, source: Path, command: str) -> None:
    wrong = [f"throttled+file://{source}/empty?rate=fast", "hdfs://:port/file", "s3:///key"]
    code, _, err = run(command, *wrong)
    assert (code, err.count("\n")) == (2, len(wrong))
    assert run(command, wrong[0], source / "none")[0] == 3


def test_names_are_taken_letter_by_letter(run: Run, tmp_path: Path) -> None:
    for name in ("a?b", "c%41"):
        (tmp_path / "odd?" / name).mkdir(parents=True)
    found = json.loads(run("du", "--json", f"file://{tmp_path}/odd%3F")[1])["paths"]
    assert [each["path"] for each in found] == [f"{tmp_path}/odd?/a?b", f"{tmp_path}/odd?/c%41", f"{tmp_path}/odd?"]


# -- cat


def test_cat(source: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    model = str(source / "step-1" / "model")
    for words, data in (
        ([model], DATA),
        ([model, str(source / "empty"), str(source / "step-1/deep/config")], DATA + b"{}"),
        (["--offset", "9MiB", "--length", "3MiB", model], DATA[9 * MIB : 12 * MIB]),
        (["--offset", "20000000", model], DATA[20_000_000:]),
        (["--length", "0", model], b""),
        (["--offset", "1TiB", model], b""),
    ):
        assert PROGRAM.main(["cat", *words]) == 0
        assert capfdbinary.readouterr() == (data, b"")


def test_cat_says_what_cannot_be_read(source: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    parts = sorted((source / ".stripefs").glob("*/0"))
    with parts[0].open("r+b") as file:
        file.write(b"spoilt")
    code = PROGRAM.main(["cat", str(source / "step-1/model"), str(source), str(source / "step-1/deep/config")])
    out, err = capfdbinary.readouterr()
    assert (code, out) == (3, b"{}")
    model, folder = err.decode().splitlines()
    assert "does not fit its checksum" in model
    assert folder.endswith("is a directory")


def test_a_reader_that_leaves_is_no_news(source: Path) -> None:
    command = [command_conformance.program("stripefs"), "cat", source / "step-1" / "model"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(10) == DATA[:10]
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_a_full_disk_behind_cat_is_one_line(source: Path) -> None:
    command = [command_conformance.program("stripefs"), "cat", source / "step-1" / "model"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"stripefs: standard output: No space left on device\n")


# -- rm


def test_rm(run: Run, source: Path) -> None:
    (source / "link").symlink_to("step-1")
    assert run("rm", source / "empty", source / "link") == (0, "", "")
    code, out, err = run("rm", source / "none", source / "step-1")
    assert (code, out) == (3, "")
    assert err.splitlines() == [
        f"stripefs: {source}/none: No such file or directory",
        f"stripefs: {source}/step-1: it is a directory, which -r removes",
    ]
    assert run("rm", "-f", source / "none") == (0, "", "")
    (source / "step-1" / ".model.stripefs-0123456789abcdef-0").unlink()
    assert run("rm", "-r", source / "step-1") == (0, "", "")
    assert {name for name in names(source) if not name.startswith(".stripefs/")} == {".stripefs"}
    # The parts are left to readers, and then to gc. A program waits for the tombstone when it ends.
    assert eventually(lambda: [name for name in names(source) if name.endswith("/stone")], "the parts' tombstone")


def test_rm_of_a_whole_source(run: Run, source: Path) -> None:
    (source / "step-1" / ".model.stripefs-0123456789abcdef-0").unlink()
    code, _, err = run("rm", "-r", source)
    assert code == 3
    assert "keeps parts of removed files for their readers; a gc removes them" in err
    assert run("ls", source) == (0, "", "")


def test_rm_of_a_whole_source_at_once(run: Run, source: Path) -> None:
    (source / "step-1" / ".model.stripefs-0123456789abcdef-0").unlink()
    assert run("rm", "-r", "--grace", "0s", source) == (0, "", "")
    assert not source.exists()


# -- du


def test_du(run: Run, source: Path) -> None:
    kept = sum(path.stat().st_size for path in (source / ".stripefs").glob("*/*"))
    kept += (source / "step-1" / "model").stat().st_size
    code, out, err = run("du", "--json", source)
    deep, step, all_of_it = json.loads(out)["paths"]
    assert (code, err) == (0, "")
    assert deep == {"path": f"{source}/step-1/deep", "files": 1, "bytes": 2, "stored_bytes": 2}
    assert step == {"path": f"{source}/step-1", "files": 2, "bytes": len(DATA) + 2, "stored_bytes": kept + 2}
    assert all_of_it == {"path": str(source), "files": 3, "bytes": len(DATA) + 2, "stored_bytes": kept + 2}
    code, out, _ = run("du", "-sh", source, source / "step-1" / "deep" / "config")
    assert [line.split()[0] for line in out.splitlines()] == ["path", str(source), f"{source}/step-1/deep/config"]
    assert "20.0 MiB" in out


def test_du_goes_on(run: Run, source: Path) -> None:
    manifest = source / "step-1" / "model"
    manifest.write_bytes(manifest.read_bytes()[:-1] + b"?")
    code, out, err = run("du", "-s", source, source / "none")
    assert code == 3
    assert len(out.splitlines()) == 2
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("command", ["ls", "du", "cp"])
def test_json_has_the_keys_that_the_document_names(run: Run, source: Path, tmp_path: Path, command: str) -> None:
    target = [tmp_path] if command == "cp" else []
    found = json.loads(run(command, "--json", source / "empty", source / "none", *target)[1])
    text = (CHECKOUT / "docs" / "json.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith(f"| `{command}` |"))
    for each in (found, *(array[0] for array in found.values() if isinstance(array, list))):
        assert all(f"`{key}`" in row for key in each)
    assert [(each["path"], each["error"], each.get("kept", "")) for each in found["trouble"]] == [
        (f"{source}/none", "No such file or directory", "")
    ]
