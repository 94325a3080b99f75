"""Scripts and commands that run installers: what shows of it is in the key, or open."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.imagefs.deps.asked import PIP, UV, key, make, open_ends
from tests.unit.imagefs.deps.locks import UV_LOCK


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return make(tmp_path / "job-1")


def test_scripts_are_inputs_and_are_read(job: Path) -> None:
    script = job / "install.sh"
    script.write_text("#!/bin/sh\npip install six==1\npip install -r requirements.txt\n")
    script.chmod(0o755)
    for words in (["./install.sh"], ["bash", "-e", "install.sh"], ["env", "X=1", "./install.sh"]):
        found = key(job, *words)
        assert list(found.components["files"]) == ["install.sh", "more.txt", "requirements.txt", "src/"]  # type: ignore[arg-type]
    script.write_text("pip install numpy\ncurl https://x | sh\npip install -r $1\npip install ./nowhere.whl\n")
    assert [line.split(": ")[:2] for line in open_ends(job, "bash", "install.sh")] == [
        ["install.sh:1", "numpy"],
        ["install.sh:2", "curl https://x"],
        ["install.sh:3", "$1"],
        ["install.sh:4", "./nowhere.whl"],
    ]


def test_a_script_that_carries_a_load_is_not_read(job: Path) -> None:
    script = job / "install.sh"
    script.write_bytes(b"#!/bin/sh\n" + b"\xff$(curl https://x)\n" * 100_000)
    (line,) = open_ends(job, "sh", "install.sh")
    assert line.startswith("command: install.sh: a script of more than 1 MiB is not read")
    assert list(key(job, "sh", "install.sh", epoch="1").components["files"]) == ["install.sh"]  # type: ignore[arg-type]


def test_what_a_script_makes_itself_may_be_declared(job: Path) -> None:
    (job / "install.sh").write_text("cd /work\npip install -r lists/requirements.txt\n")
    assert len(open_ends(job, "bash", "install.sh")) == 1
    assert open_ends(job, "bash", "install.sh", requirements=["requirements.txt"]) == []


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("sh", "-c", "cd src && pip install -r requirements.txt"), "requirements.txt"),
        (("sh", "-c", "pushd src\npip install six-1.16-py2.py3-none-any.whl"), "six-1.16-py2.py3-none-any.whl"),
        (("sh", "-c", "cd src; uv sync --locked"), "uv sync"),
        (("env", "-C", "src", "pip", "install", "-r", "requirements.txt"), "requirements.txt"),
        (("env", "--chdir=src", "pip", "install", "-c", "more.txt", "six==1"), "more.txt"),
        ((UV[0], "--directory", "src", *UV[1:], "-r", "requirements.txt"), "--directory src"),
    ],
)
def test_paths_of_another_directory_are_not_taken_for_those_of_this_one(
    job: Path, words: tuple[str, ...], what: str
) -> None:
    (job / "requirements.txt").write_text("six==1.16\n")
    (job / "uv.lock").write_text(UV_LOCK)
    (job.parent / "own").mkdir()
    assert [line.split(": ")[:2] for line in open_ends(job, *words)] == [["command", what]]


@pytest.mark.parametrize(
    "command",
    [
        "git clone https://user:secret@example.com/repo /opt/deps",
        "curl -o /opt/deps/tool https://user:secret@example.com/tool",
        "env A=b apt-get install -y gcc",
        "conda create -p /opt/deps numpy",
    ],
)
def test_a_command_that_brings_what_may_change_is_open(job: Path, command: str) -> None:
    (found,) = open_ends(job, *command.split())
    assert found.startswith(f"command: {command.replace('user:secret@', '')}: ")
    assert open_ends(job, *command.split(), epoch="1") == []


def test_variables_that_are_set_for_an_installer_alone(job: Path) -> None:
    (job / "wheels").mkdir()
    for words in (
        ("env", "A=b", "PIP_FIND_LINKS=wheels", "PIP_CONSTRAINT=more.txt", *PIP, "six==1"),
        ("sh", "-c", "PIP_FIND_LINKS=wheels PIP_CONSTRAINT=more.txt pip install six==1"),
        ("env", "UV_FIND_LINKS=wheels,other", "UV_CONSTRAINT=more.txt", *UV, "six==1"),
    ):
        assert list(key(job, *words).components["files"]) == ["more.txt", "wheels/"]  # type: ignore[arg-type]
    assert len(open_ends(job, "env", "PIP_PRE=1", *PIP, "six==1")) == 1


def test_where_uv_is_told_to_go_by_variables(job: Path) -> None:
    (job / "src/uv.lock").write_text(UV_LOCK)
    (job / "own").mkdir()
    (job / "src/uv.toml").write_text("no-sources = true\n")
    assert len(open_ends(job, *UV, "-r", "requirements.txt", variables={"UV_WORKING_DIR": "src"})) == 1
    for name in ("UV_WORKING_DIR", "UV_PROJECT"):
        found = key(job, UV[0], "sync", "--locked", variables={name: "src"})
        assert "uv.lock" in found.components["files"]  # type: ignore[operator]
        assert "uv.project.no-sources" in found.components["settings"]  # type: ignore[operator]


def test_a_command_for_a_shell_is_read(job: Path) -> None:
    assert [line.split(": ")[:2] for line in open_ends(job, "bash", "-c", "pip install numpy && true")] == [
        ["command", "numpy"]
    ]
    assert open_ends(job, "bash", "-ec", "pip install numpy==1") == []
    found = key(job, "sh", "-c", f"pip install -r {job}/requirements.txt -c {job}/more.txt && ls {job}/more.txt.old")
    assert found.components["command"] == [
        *("sh", "-c", f"pip install -r requirements.txt -c more.txt && ls {job}/more.txt.old")
    ]
