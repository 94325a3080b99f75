"""Keys of requests whose inputs are real: projects, wheels, declared files, programs and the files of uv."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from imagefs.deps.key import Key, diff
from imagefs.deps.keybuilder import ask
from imagefs.deps.local import BuildOrder, Wheel
from imagefs.deps.lock import Lock, LockedRequirement
from stripefs.errors import ConfigError
from tests.support.deps.locks import UV_LOCK
from tests.support.deps.requests import (
    PIP,
    UV,
    NoIndex,
    answer,
    built,
    environ,
    facts_of,
    key,
    known,
    open_ends,
    request,
)


def files_in(found: Key) -> dict[str, Any]:
    """The files and directories that the key has, with what it has of each."""
    files = found.components["files"]
    assert isinstance(files, dict)
    return files


def test_a_project_counts_by_what_it_is_built_to(job: Path) -> None:
    """Not by files beside it, and by nothing less: whatever its build reads is in the wheel."""
    first = answer(job)
    wheels = {str(job / "src"): Wheel("own", "2", "9" * 64, ())}
    second = ask(request(job), NoIndex(), environ(job), known(PIP), lambda _order, _environ: wheels)
    assert isinstance(first.found, Key)
    assert isinstance(second.found, Key)
    assert list(diff(first.found, second.found).changed) == ["files.src/"]
    assert list(second.wheels) == list(wheels.values())


def test_what_a_project_is_built_with(job: Path) -> None:
    """Options that say where build requirements come from, of the command and of files."""
    (job / "more.txt").write_text("--extra-index-url https://u:p@other\n--find-links wheels\nnumpy==1.26.4\n")
    orders: list[BuildOrder] = []

    def build(order: BuildOrder, environ: Mapping[str, str]) -> dict[str, Wheel]:
        orders.append(order)
        return built(order, environ)

    for tool in (PIP, UV):
        words = (*tool, "--index-url", "https://index", "-r", "requirements.txt", "--target", "/opt/deps")
        ask(request(job, *words), NoIndex(), environ(job), known(tool), build)
        command = orders[-1].command(str(job / "src"), "/out")
        assert command[-3:] == [command[-3], "/out", str(job / "src")]
        assert "--target" not in command
        for word in ("https://index", "https://u:p@other", str(job / "wheels")):
            assert word in command
    assert [order.command("s", "o")[: len(PIP)] for order in orders[:1]] == [[*PIP[:3], "wheel"]]


@pytest.mark.parametrize("name", ["CFLAGS", "TORCH_CUDA_ARCH_LIST", "SETUPTOOLS_SCM_PRETEND_VERSION", "CMAKE_ARGS"])
def test_variables_of_builds_count_where_something_is_built(job: Path, name: str) -> None:
    first, second = (key(job, variables={name: value}) for value in ("1", "2"))
    assert list(diff(first, second).changed) == [f"build.variables.{name}"]
    lock = Lock.of([LockedRequirement("six", "1.16", "wheel", ["sha256:" + "a" * 64])])
    (job / "requirements.txt").write_text("six==1.16\n")
    resolver = NoIndex(lock)
    of_wheels = [
        ask(request(job), resolver, environ(job, **{name: value}), known(PIP), built).found for value in ("1", "2")
    ]
    assert of_wheels[0] == of_wheels[1]
    assert isinstance(of_wheels[0], Key)
    assert of_wheels[0].components["build"] is None


def test_another_compiler_is_another_key(job: Path) -> None:
    compiler = job / "cc"
    compiler.write_text("#!/bin/sh\necho cc 1.0\n")
    compiler.chmod(0o755)
    first = key(job, variables={"CC": str(compiler)})
    compiler.write_text("#!/bin/sh\necho cc 2.0\n")
    assert list(diff(first, key(job, variables={"CC": str(compiler)})).changed) == ["build.compilers.cc"]


def test_what_pip_finds_installed_is_in_the_key(job: Path) -> None:
    """It is not installed once more, so a host that lacks it needs another snapshot."""
    (job / "beside/light-1.0.dist-info").mkdir(parents=True)
    variables = {"PYTHONPATH": str(job / "beside")}
    into = (*PIP[:3], "--python", "env", "install", "six==1")
    assert key(job, *into, variables=variables).components["settings"] == {"pip.present": ["light-1.0"]}
    for one in ("--target=/opt/deps", "-I", "--force-reinstall"):
        assert key(job, *into, one, variables=variables).components["settings"] == {}
    assert key(job, *UV, "six==1", variables=variables).components["settings"] == {}
    own = [f"pip-{facts_of('pip').installers['pip']}"]
    found = key(job, *PIP, "--prefix", "/opt/deps", "six==1").components["settings"]
    assert set(own) <= set(found["pip.present"])  # type: ignore[index,arg-type,call-overload]


def test_an_image_says_what_pip_finds_installed(job: Path) -> None:
    words = (*PIP, "six==1")
    plain = key(job, *words, base_image="sha256:1")
    assert diff(plain, key(job, *words, base_image="sha256:1", variables={"PYTHONPATH": "/app"})).added == {
        "settings.pip.present": ["/app"]
    }


def test_uv_looks_in_several_directories(job: Path) -> None:
    """Separated by commas."""
    for name in ("wheels", "src/more"):
        (job / name).mkdir()
    found = key(job, *UV, "--no-index", "six==1", "-f", "src/more,wheels")
    assert {Path(name).name for name in files_in(found)} == {"more", "wheels"}


def test_declared_files_and_directories_are_inputs(job: Path) -> None:
    found = key(job, "true", inputs=["src", "more.txt"], requirements=["requirements.txt"])
    assert list(files_in(found)) == ["more.txt", "requirements.txt", "src/"]
    (line,) = open_ends(job, "true", inputs=["more.txt"], requirements=["requirements.txt"])
    assert "what builds it is not known here" in line


def test_declared_variables_are_in_the_key(job: Path) -> None:
    found = key(job, env=["MAX_JOBS", "CC", "INDEX"], variables={"MAX_JOBS": "4", "INDEX": "https://a:b@x"})
    assert found.components["environment"] == {"CC": None, "INDEX": "https://x", "MAX_JOBS": "4"}


def test_programs_count_by_their_versions_and_not_by_their_bytes(job: Path) -> None:
    program = job / "program"
    shutil.copy("/bin/true", program)
    inputs = ["more.txt"]
    assert list(files_in(key(job, str(program), inputs=inputs))) == inputs
    found = files_in(key(job, "env", str(program), inputs=inputs))
    assert list(found) == ["more.txt", "program"]


def test_what_uv_syncs(job: Path) -> None:
    uv = UV[0]
    (job / "pyproject.toml").write_text("[project]\nname = 'app'\n")
    assert len(open_ends(job, uv, "sync", "--locked")) == 1
    (job / "uv.lock").write_text(UV_LOCK)
    (job.parent / "own").mkdir()
    assert len(open_ends(job, uv, "sync", "--no-editable")) == 1
    assert "--no-editable" in open_ends(job, uv, "sync", "--locked")[0]
    whole = (uv, "sync", "--locked", "--no-editable")
    files = files_in(key(job, *whole))
    assert sorted(files) == ["./", "own/", "pyproject.toml", "uv.lock"]
    (job.parent / "beside").mkdir()
    beside = files_in(key(job.parent / "beside", uv, "--project", "../job-1", *whole[1:]))
    assert sorted(beside.values()) == sorted(files.values())
    lock = answer(job, *whole).lock
    assert lock is not None
    assert [str(one) for one in lock.requirements] == ["app==1", "own", "six==1.16"]
    (job / "uv.lock").write_text("package = 7")
    with pytest.raises(ConfigError):
        key(job, *whole)


def test_overrides_are_open(job: Path) -> None:
    (job / "other.txt").write_text("six>=1\n")
    (line,) = open_ends(job, *UV, "--override", "other.txt", "six==1.16", strict=True)
    assert line.startswith("other.txt:1: six>=1: ")


def test_names_of_files_do_not_tell_where_the_job_lies(job: Path, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/list.txt").write_text("six==1\n")
    (job / "wheels").mkdir()
    (job / "wheels/six-1-py3-none-any.whl").touch()
    words = (*PIP, ".", "./wheels/six-1-py3-none-any.whl", "-r", "../shared/list.txt")
    files = files_in(key(job, *words, inputs=[str(tmp_path / "shared")]))
    assert list(files) == ["./", "list.txt", "shared/", "wheels/six-1-py3-none-any.whl"]


def test_an_installer_may_come_into_being_with_its_target(job: Path) -> None:
    words = (f"{job}/venv/bin/python", "-m", "pip", "install", "six==1")
    assert ask(request(job, *words, python=sys.executable), NoIndex(), environ(job)).facts.installers == {}


def test_what_can_be_read_but_once_is_left_to_the_installer(job: Path) -> None:
    """As `-r <(…)` of a shell."""
    os.mkfifo(job / "pipe")
    (job / "includes.txt").write_text("-r pipe\n")
    for words in ((*PIP, "-r", "pipe"), (*PIP, "-r", "includes.txt"), (*UV, "--override", "pipe", "six==1")):
        with pytest.raises(ConfigError, match="can be read but once"):
            key(job, *words)
    with pytest.raises(ConfigError, match="can be read but once"):
        key(job, "true", inputs=["pipe"])
