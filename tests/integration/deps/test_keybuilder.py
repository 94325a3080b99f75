"""Requests with real files, a real Python, pip and uv, and the keys of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from imagefs.deps.key import Key, diff
from imagefs.deps.keybuilder import Answer, ask, unchanged
from tests.support.deps.locks import PYLOCK, UV_LOCK
from tests.support.deps.requests import (
    PIP,
    UV,
    NoIndex,
    built,
    environ,
    facts_of,
    key,
    known,
    make,
    open_ends,
    request,
)


def test_equal_inputs_have_equal_keys_whatever_else_differs_between_two_nodes(job: Path, tmp_path: Path) -> None:
    other = make(tmp_path / "elsewhere/job-2")
    node = {"HOSTNAME": "node-7", "RANK": "3", "WORLD_SIZE": "64", "SLURM_JOB_ID": "99", "CUDA_VISIBLE_DEVICES": "1"}
    node |= {"PIP_INDEX_URL": "https://user:token-1@index/simple", "PIP_CACHE_DIR": "/a", "PIP_TIMEOUT": "9"}
    first = key(job, variables=node)
    node |= {"HOSTNAME": "node-8", "RANK": "4", "WORLD_SIZE": "128", "SLURM_JOB_ID": "100", "TMPDIR": "/tmp"}
    node |= {"PIP_INDEX_URL": "https://user:token-2@index/simple", "PIP_CACHE_DIR": "/b"}
    second = key(other, *PIP, "--target", "/opt/deps", "-r", str(other / "requirements.txt"), variables=node)
    assert first.to_json() == second.to_json()
    assert first.components["indexes"] == {"pip.index-url": ["https://index/simple"]}
    for secret in (b"token", b"user", b"node-", b"job-"):
        assert secret not in first.to_json()


@pytest.mark.parametrize("name", ["requirements.txt", "more.txt"])
def test_one_byte_changes_the_key(job: Path, name: str) -> None:
    before = key(job)
    path = job / name
    path.write_bytes(path.read_bytes() + b"x==1\n")
    assert list(diff(before, key(job)).changed) == [f"files.{name}"]


def test_what_a_request_is_asked_for_is_that_of_its_own_python_and_installers(job: Path) -> None:
    own = ask(request(job), NoIndex(), environ(job), build=built)
    assert own.facts == facts_of("pip")
    assert own.facts.python is not None
    assert own.facts.python.executable == sys.executable
    uv = ask(request(job, *UV, "six==1"), NoIndex(), environ(job)).facts
    assert list(uv.installers) == ["uv"]
    assert uv.python is not None
    script = ask(
        request(job, "bash", "-c", ":", inputs=["more.txt"], python=sys.executable), NoIndex(), environ(job)
    ).facts
    assert set(script.installers) <= {"pip", "uv"}
    assert "pip" in script.installers


def test_what_is_resolved_and_what_is_taken_as_it_is(job: Path) -> None:
    resolver = NoIndex()

    def asked(*words: str, **more: Any) -> Answer:
        return ask(request(job, *words, **more), resolver, environ(job), known(words))

    (job / "hashed.txt").write_text(f"six==1.16 --hash=sha256:{'ab' * 32}\n")
    (job / "pylock.toml").write_text(PYLOCK)
    for words in ((*PIP, "-r", "hashed.txt"), (*UV, "-r", "pylock.toml", "--require-hashes")):
        found = asked(*words)
        assert found.lock is not None
        assert found.locked_install is None
        assert [str(one) for one in found.lock.requirements] == ["six==1.16"]
    assert asked(*PIP, "six", epoch="1").lock is None
    assert asked("true", inputs=["more.txt"]).lock is None
    assert resolver.asked == []
    # uv asks for no digests of what others need besides, unless it is told to
    for number, words in enumerate(((*PIP, "six"), (*PIP, "six==1"), (*UV, "six"), (*UV, "-r", "hashed.txt")), 1):
        assert asked(*words).locked_install is not None
        assert len(resolver.asked) == number
    (job / "uv.toml").write_text("override-dependencies = ['six==2']\n")
    assert asked(*UV, "-r", "pylock.toml", "--require-hashes").locked_install is not None
    assert len({*resolver.asked}) == 5


def test_what_was_asked_may_have_changed_since(job: Path) -> None:
    """Directories may: what is built from one may write there."""
    answer = ask(request(job), NoIndex(), environ(job), build=built)
    assert unchanged(request(job), answer, environ(job))
    assert not unchanged(request(job), answer, environ(job, PIP_INDEX_URL="https://other.example/simple"))
    (job / "src/made.py").write_text("made = 1\n")
    assert unchanged(request(job), answer, environ(job))
    (job / "more.txt").write_text("numpy==1.26.4 # a remark\n\n")
    assert unchanged(request(job), answer, environ(job))
    (job / "more.txt").write_text("numpy==1.26.5\n")
    assert not unchanged(request(job), answer, environ(job))
    (job / "more.txt").unlink()
    assert not unchanged(request(job), answer, environ(job))


def test_settings_may_pin_and_may_leave_open(job: Path) -> None:
    (job / "more.txt").write_text("numpy>=1\n")
    (job / "constraints.txt").write_text("numpy==1.26.4\n")
    pinned = key(job, variables={"PIP_CONSTRAINT": str(job / "constraints.txt")})
    assert pinned.components["settings"] == {"pip.constraint": ["constraints.txt"]}
    assert "constraints.txt" in pinned.components["files"]  # type: ignore[operator]
    for name, value, what in (
        ("PIP_PRE", "1", "--pre"),
        ("PIP_FIND_LINKS", "https://x/wheels", "https://x/wheels"),
        ("PIP_CONSTRAINT", "https://x/c.txt", "https://x/c.txt"),
    ):
        found = open_ends(job, *PIP, "numpy==1", variables={name: value}, strict=True)
        assert [line.split(": ")[:2] for line in found] == [["settings of pip", what]]


def test_settings_of_uv_count_for_uv_alone(job: Path) -> None:
    variables = {"UV_TORCH_BACKEND": "auto"}
    assert open_ends(job, *PIP, "six==1", variables=variables) == []
    assert len(open_ends(job, *UV, "six==1", variables=variables)) == 1
    assert len(open_ends(job, *UV, "--torch-backend", "auto", "six==1")) == 1
    assert len(open_ends(job, "true", inputs=["more.txt"], variables=variables)) == 1


def test_what_is_set_otherwise_is_in_the_key(job: Path) -> None:
    plain = key(job)
    assert list(diff(plain, key(job, variables={"PIP_NO_BINARY": ":all:"})).added) == ["settings.pip.no-binary"]
    (job.parent / "home/.config/pip").mkdir(parents=True)
    (job.parent / "home/.config/pip/pip.conf").write_text("[global]\nextra-index-url = https://a:b@x/y\n")
    found = ask(request(job), NoIndex(), environ(job), build=built).found
    assert isinstance(found, Key)
    assert diff(plain, found).added == {"indexes.pip.extra-index-url": ["https://x/y"]}


def test_a_file_of_settings_of_uv_is_in_the_key(job: Path) -> None:
    plain = key(job, *UV, "six==1")
    (job / "uv.toml").write_text("no-build = true\n# a remark\n")
    one = key(job, *UV, "six==1")
    assert list(diff(plain, one).added) == ["settings.uv.uv.toml"]
    (job / "uv.toml").write_text("no-build  =  true\n")
    assert key(job, *UV, "six==1") == one
    (job / "uv.toml").write_text("[pip]\ntorch-backend = 'auto'\n")
    assert [line.split(": ")[0] for line in open_ends(job, *UV, "six==1")] == ["settings of uv"]


def test_a_command_that_is_no_installer_needs_declared_inputs(job: Path) -> None:
    (job / "install.sh").write_text("pip install numpy\n")
    for words in (("sh", "install.sh"), ("bash", "-c", "pip install six==1"), ("git", "clone", "https://u:p@host/r")):
        (found,) = open_ends(job, *words)
        assert "declare what decides that with --input, or give --epoch" in found
        assert "u:p" not in found
        assert open_ends(job, *words, epoch="1") == open_ends(job, *words, inputs=["more.txt"]) == []
    script = list(key(job, "sh", "install.sh", inputs=["more.txt"]).components["files"])  # type: ignore[arg-type]
    assert script == ["install.sh", "more.txt"]


def test_what_has_to_succeed_before_the_installer_is_in_the_key(job: Path) -> None:
    plain = key(job, *PIP, "six==1")
    made = key(job, *PIP, "six==1", setup=["python3", "-m", "venv", "env"])
    assert made.components["command"] == ["python3", "-m", "venv", "env", *plain.components["command"]]  # type: ignore[misc]


def test_variables_that_are_set_for_an_installer_alone(job: Path) -> None:
    (job / "wheels").mkdir()
    for words in (
        ("env", "A=b", "PIP_FIND_LINKS=wheels", "PIP_CONSTRAINT=more.txt", *PIP, "six==1"),
        ("env", "UV_FIND_LINKS=wheels,other", "UV_CONSTRAINT=more.txt", *UV, "six==1"),
    ):
        assert list(key(job, *words).components["files"]) == ["more.txt", "wheels/"]  # type: ignore[arg-type]
    assert len(open_ends(job, "env", "PIP_PRE=1", *PIP, "six==1", strict=True)) == 1


def test_where_uv_is_told_to_go_by_variables(job: Path) -> None:
    (job / "src/uv.lock").write_text(UV_LOCK)
    (job / "own").mkdir()
    (job / "src/uv.toml").write_text("no-sources = true\n")
    assert len(open_ends(job, *UV, "-r", "requirements.txt", variables={"UV_WORKING_DIR": "src"})) == 1
    for name in ("UV_WORKING_DIR", "UV_PROJECT"):
        found = key(job, UV[0], "sync", "--locked", "--no-editable", variables={name: "src"})
        assert "uv.lock" in found.components["files"]  # type: ignore[operator]
        assert "uv.uv.toml" in found.components["settings"]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("env", "-C", "src", "pip", "install", "-r", "requirements.txt"), "requirements.txt"),
        (("env", "--chdir=src", "pip", "install", "-c", "more.txt", "six==1"), "more.txt"),
        ((UV[0], "--directory", "src", *UV[1:], "-r", "requirements.txt"), "--directory src"),
        ((*UV, "-r", "-"), "-"),
        ((*PIP, "-r", "/dev/stdin"), "/dev/stdin"),
        ((*PIP, "-r", "https://x/y.txt"), "https://x/y.txt"),
        ((*PIP, "--group", "test"), "--group test"),
    ],
)
def test_what_is_not_of_this_directory_is_open(job: Path, words: tuple[str, ...], what: str) -> None:
    (job / "requirements.txt").write_text("six==1.16\n")
    (job / "pyproject.toml").write_text("[dependency-groups]\ntest = ['pytest']\n")
    assert [line.split(": ")[:2] for line in open_ends(job, *words)] == [["command", what]]


def test_words_of_the_command(job: Path) -> None:
    wheel = str(job / "six-1.16-py2.py3-none-any.whl")
    found = key(job, *PIP, "--index-url", "https://u:p@index", "--requirement=requirements.txt", wheel, "./src")
    assert found.components["command"] == [
        *PIP,
        *("--index-url", "https://index", "--requirement=requirements.txt", "six-1.16-py2.py3-none-any.whl"),
        "src/",
    ]
    assert found.components["indexes"] == {"command.index-url": ["https://index"]}
