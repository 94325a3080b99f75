"""Requests with real files, a real Python, pip and uv, and the keys of them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from imagefs.deps.asking import Answer, ask, unchanged
from imagefs.deps.key import Key, diff
from imagefs.deps.local import Order, Wheel
from imagefs.deps.lock import Lock, LockedRequirement
from stripefs.errors import ConfigError
from tests.unit.imagefs.deps.asked import (
    PIP,
    UV,
    NoIndex,
    answer,
    built,
    environ,
    facts_of,
    key,
    known,
    make,
    open_ends,
    request,
)
from tests.unit.imagefs.deps.locks import PYLOCK, UV_LOCK


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return make(tmp_path / "job-1")


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


def test_files_are_in_the_key_by_name_and_content(job: Path) -> None:
    files = key(job).components["files"]
    assert isinstance(files, dict)
    assert list(files) == ["more.txt", "requirements.txt", "src/"]


@pytest.mark.parametrize("name", ["requirements.txt", "more.txt", "src/own.py"])
def test_one_byte_changes_the_key(job: Path, name: str) -> None:
    before = key(job)
    path = job / name
    path.write_bytes(path.read_bytes() + b"x==1\n")
    changed = diff(before, key(job)).changed
    assert list(changed) == ["files." + ("src/" if name.startswith("src") else name)]


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


def test_another_python_changes_the_key(job: Path) -> None:
    other = ask(request(job, python=os.path.realpath(sys.executable)), NoIndex(), environ(job), build=built).found
    assert isinstance(other, Key)
    assert list(diff(key(job), other).changed) == ["python.executable"]


@pytest.mark.parametrize(
    "more", [("-q",), ("-vv",), ("--progress-bar", "off"), ("--timeout=9",), ("--no-color", "--retries", "3")]
)
def test_how_much_an_installer_says_is_no_part_of_the_key(job: Path, more: tuple[str, ...]) -> None:
    for words in ((*PIP, "six==1"), (*UV, "six==1")):
        assert key(job, *words, *more) == key(job, *words)
    (job / "requirements.txt").write_text("# of the job\n-r more.txt\n\nsix==1.16   # pinned\n./src\n")
    assert key(job) == key(make(job.parent / "other"))


def test_what_is_resolved_and_what_is_taken_as_it_is(job: Path) -> None:
    resolver = NoIndex()

    def asked(*words: str, **more: Any) -> Answer:
        return ask(request(job, *words, **more), resolver, environ(job), known(words))

    (job / "hashed.txt").write_text(f"six==1.16 --hash=sha256:{'ab' * 32}\n")
    (job / "pylock.toml").write_text(PYLOCK)
    for words in ((*PIP, "-r", "hashed.txt"), (*UV, "-r", "pylock.toml", "--require-hashes")):
        found = asked(*words)
        assert found.lock is not None
        assert found.held is None
        assert [str(one) for one in found.lock.requirements] == ["six==1.16"]
    assert asked(*PIP, "six", epoch="1").lock is None
    assert asked("true", inputs=["more.txt"]).lock is None
    assert resolver.asked == []
    # uv asks for no digests of what others need besides, unless it is told to
    for number, words in enumerate(((*PIP, "six"), (*PIP, "six==1"), (*UV, "six"), (*UV, "-r", "hashed.txt")), 1):
        assert asked(*words).held is not None
        assert len(resolver.asked) == number
    (job / "uv.toml").write_text("override-dependencies = ['six==2']\n")
    assert asked(*UV, "-r", "pylock.toml", "--require-hashes").held is not None
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


def test_another_cpu_level_changes_the_key(job: Path) -> None:
    keys = []
    for level in ("x86-64-v1", "x86-64-v2", "x86-64-v3"):
        simulated = facts_of("pip")._replace(cpu_level=level)
        keys.append(ask(request(job), NoIndex(), environ(job), simulated, build=built).found)
    assert len({one.digest for one in keys if isinstance(one, Key)}) == 3
    asked = ask(request(job, cpu_level="x86-64-v1"), NoIndex(), environ(job), build=built).found
    assert asked == keys[0]


def test_unpinned_names_are_refused_with_file_and_line(job: Path) -> None:
    (job / "more.txt").write_text("# pinned\nnumpy>=1\n")
    assert open_ends(job) == []
    assert open_ends(job, strict=True) == [
        "more.txt:2: numpy>=1: no one version is asked for; write ==VERSION, or pin it in a constraints file, "
        "or give hashes"
    ]
    assert open_ends(job, strict=True, epoch="1") == open_ends(job, strict=True, allow_unpinned=True) == []
    (job / "constraints.txt").write_text("numpy==1.26.4\n")
    assert open_ends(job, *PIP, "-r", "requirements.txt", "-c", "constraints.txt", strict=True) == []


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
    ],
)
def test_paths_of_another_directory_are_not_taken_for_those_of_this_one(
    job: Path, words: tuple[str, ...], what: str
) -> None:
    (job / "requirements.txt").write_text("six==1.16\n")
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


def test_what_is_installed_editable_is_open(job: Path) -> None:
    (line,) = open_ends(job, *PIP, "--no-deps", "-e", "./src")
    assert "leave out -e" in line


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
    orders: list[Order] = []

    def build(order: Order, _environ: object) -> dict[str, Wheel]:
        orders.append(order)
        return built(order, _environ)

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


def test_directories_of_wheels_are_inputs(job: Path) -> None:
    (job / "wheels").mkdir()
    words = (*PIP, "--no-index", "--find-links", "wheels", "six==1")
    before = key(job, *words)
    (job / "wheels/six-1-py3-none-any.whl").write_bytes(b"x")
    assert list(diff(before, key(job, *words)).changed) == ["files.wheels/"]


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
    words = (*UV, "--no-index", "six==1")
    for found in (
        key(job, *words, "-f", "src/more,wheels"),
        key(job, *words, variables={"UV_FIND_LINKS": "src/more,wheels"}),
    ):
        assert {Path(name).name for name in found.components["files"]} == {"more", "wheels"}  # type: ignore[union-attr]


def test_declared_files_and_directories_are_inputs(job: Path) -> None:
    found = key(job, "true", inputs=["src", "more.txt"], requirements=["requirements.txt"])
    assert list(found.components["files"]) == ["more.txt", "requirements.txt", "src/"]  # type: ignore[arg-type]
    (line,) = open_ends(job, "true", inputs=["more.txt"], requirements=["requirements.txt"])
    assert "what builds it is not known here" in line


def test_declared_variables_are_in_the_key(job: Path) -> None:
    found = key(job, env=["MAX_JOBS", "CC", "INDEX"], variables={"MAX_JOBS": "4", "INDEX": "https://a:b@x"})
    assert found.components["environment"] == {"CC": None, "INDEX": "https://x", "MAX_JOBS": "4"}


def test_programs_count_by_their_versions_and_not_by_their_bytes(job: Path) -> None:
    program = job / "program"
    shutil.copy("/bin/true", program)
    inputs = ["more.txt"]
    assert list(key(job, str(program), inputs=inputs).components["files"]) == inputs  # type: ignore[arg-type]
    found = key(job, "env", str(program), inputs=inputs).components["files"]
    assert list(found) == ["more.txt", "program"]  # type: ignore[arg-type]


def test_what_uv_syncs(job: Path) -> None:
    uv = UV[0]
    (job / "pyproject.toml").write_text("[project]\nname = 'app'\n")
    assert len(open_ends(job, uv, "sync", "--locked")) == 1
    (job / "uv.lock").write_text(UV_LOCK)
    (job.parent / "own").mkdir()
    assert len(open_ends(job, uv, "sync", "--no-editable")) == 1
    assert "--no-editable" in open_ends(job, uv, "sync", "--locked")[0]
    whole = (uv, "sync", "--locked", "--no-editable")
    files = key(job, *whole).components["files"]
    assert sorted(files) == ["./", "own/", "pyproject.toml", "uv.lock"]  # type: ignore[arg-type]
    (job.parent / "beside").mkdir()
    beside = key(job.parent / "beside", uv, "--project", "../job-1", *whole[1:]).components["files"]
    assert sorted(beside.values()) == sorted(files.values())  # type: ignore[union-attr,type-var,arg-type]
    lock = answer(job, *whole).lock
    assert lock is not None
    assert [str(one) for one in lock.requirements] == ["app==1", "own", "six==1.16"]
    (job / "uv.lock").write_text("package = 7")
    with pytest.raises(ConfigError):
        key(job, *whole)


def test_groups_and_overrides_are_open(job: Path) -> None:
    (job / "pyproject.toml").write_text("[dependency-groups]\ntest = ['pytest']\n")
    (job / "other.txt").write_text("six>=1\n")
    assert [line.split(": ")[1] for line in open_ends(job, *PIP, "--group", "test")] == ["--group test"]
    assert [
        line.split(": ")[:2] for line in open_ends(job, *UV, "--override", "other.txt", "six==1.16", strict=True)
    ] == [["other.txt:1", "six>=1"]]


def test_wheels_that_are_looked_for_where_there_is_nothing_are_none(job: Path) -> None:
    assert key(job, *PIP, "-f", "missing", "six==1").components["files"] == {}


def test_names_of_files_do_not_tell_where_the_job_lies(job: Path, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/list.txt").write_text("six==1\n")
    (job / "wheels").mkdir()
    (job / "wheels/six-1-py3-none-any.whl").touch()
    words = (*PIP, ".", "./wheels/six-1-py3-none-any.whl", "-r", "../shared/list.txt")
    files = key(job, *words, inputs=[str(tmp_path / "shared")]).components["files"]
    assert list(files) == ["./", "list.txt", "shared/", "wheels/six-1-py3-none-any.whl"]  # type: ignore[arg-type]


@pytest.mark.parametrize("words", [("-r", "missing.txt"), ("./missing-1-py3-none-any.whl",)])
def test_what_cannot_be_read_is_an_error(job: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        key(job, *PIP, *words)


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


def test_what_standard_input_brings_is_open(job: Path) -> None:
    assert len(open_ends(job, *UV, "-r", "-")) == 1
    assert len(open_ends(job, *PIP, "-r", "/dev/stdin")) == 1
    assert len(open_ends(job, *PIP, "-r", "https://x/y.txt")) == 1
