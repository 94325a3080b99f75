"""Facts of the host and its programs."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import packaging.markers
import pytest

from imagefs.deps import facts, probe
from imagefs.deps.facts import LEVELS, chosen_level, level_of
from stripefs.errors import ConfigError

V2 = {"cx16", "lahf_lm", "popcnt", "pni", "ssse3", "sse4_1", "sse4_2"}
V3 = V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        (set(), "x86-64-v1"),
        (V2, "x86-64-v2"),
        (V2 - {"popcnt"}, "x86-64-v1"),
        (V3 | {"sse2"}, "x86-64-v3"),
        (V4, "x86-64-v4"),
        (V4 - {"fma"}, "x86-64-v2"),
    ],
)
def test_levels(flags: set[str], level: str) -> None:
    assert level_of("x86_64", flags) == level
    assert level_of("aarch64", flags) == ""


def test_the_level_here_is_the_one_that_the_loader_finds() -> None:
    told = subprocess.run(["/lib64/ld-linux-x86-64.so.2", "--help"], capture_output=True, text=True, check=True).stdout
    found = [
        line.split()[0] for line in told.splitlines() if line.strip().startswith("x86-64-v") and "supported" in line
    ]
    assert facts.ask("", {}, {}, "", os.environ, "/").cpu_level == max([*found, "x86-64-v1"])


def test_a_lower_level_may_be_asked_for_and_no_other() -> None:
    assert [chosen_level(wanted, "x86-64-v3") for wanted in ("", *LEVELS[:3])] == ["x86-64-v3", *LEVELS[:3]]
    for wanted, own in (("x86-64-v4", "x86-64-v3"), ("x86-64-v1", ""), ("v3", "x86-64-v3")):
        with pytest.raises(ConfigError):
            chosen_level(wanted, own)


def test_what_an_interpreter_tells_of_itself() -> None:
    found = facts.ask(sys.executable, {}, {}, LEVELS[0], os.environ, "/")
    assert (found.os, found.architecture, found.cpu_level) == ("Linux", platform.machine(), LEVELS[0])
    assert found.libc == platform.libc_ver()
    python = found.python
    assert python is not None
    assert python.executable == sys.executable
    assert python.prefix == sys.prefix
    assert (python.implementation, python.version) == (sys.implementation.name, platform.python_version())
    assert python.soabi == sysconfig.get_config_var("SOABI")
    assert python.markers == packaging.markers.default_environment()
    assert python.sites == [sysconfig.get_path("purelib")]


def test_the_environment_does_not_change_what_it_tells(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(7)\n")
    altered = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONHOME": "/nowhere"}
    assert facts.ask(sys.executable, {}, {}, "", altered, str(tmp_path)) == facts.ask(
        sys.executable, {}, {}, "", os.environ, "/"
    )


def test_installers_tell_their_versions() -> None:
    folder = Path(sys.executable).parent
    programs = {
        "pip": [sys.executable, "-m", "pip"],
        "pip of a script": [str(folder / "pip")],
        "uv": [sys.executable, "-m", "uv"],
        "uv itself": [str(folder / "uv")],
    }
    asked = {name: facts.version_command(program, os.environ, "/") for name, program in programs.items()}
    found = facts.ask("", asked, {}, "", os.environ, "/")
    for name, program in programs.items():
        told = subprocess.run([*program, "--version"], capture_output=True, text=True, check=True).stdout
        assert told.split()[1] == found.installers[name]
    assert found.python is None


@pytest.mark.parametrize(
    "program", [["no-such-program"], ["false"], ["sh", "-c", ":"], [sys.executable, "-m", "no_such_module"]]
)
def test_a_program_that_does_not_tell_is_an_error_unless_it_may_be_missing(program: list[str]) -> None:
    with pytest.raises(ConfigError):
        facts.ask("", {"tool": program}, {}, "", os.environ, "/")
    assert facts.ask("", {}, {"tool": program}, "", os.environ, "/").installers == {}


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"os": "Linux"}', "null", '{"libc": 7}', "[" * 100_000])
def test_what_no_interpreter_tells_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        facts.read_probe(text)


@pytest.mark.parametrize(
    "wrong",
    [{"installs": 5}, {"sites": 5}, {"sites": [None]}, {"markers": []}, {"markers": {"os_name": 1}}, {"prefix": "\0"}],
)
def test_facts_of_another_kind_are_refused(wrong: dict[str, object]) -> None:
    told = json.loads(told_by(facts.probe_command(sys.executable)))
    facts.read_probe(json.dumps(told))
    with pytest.raises(ConfigError):
        facts.read_probe(json.dumps(told | {"python": told["python"] | wrong}))


def told_by(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, env={}).stdout


def test_an_interpreter_in_a_container_is_asked_by_a_command_and_tells_of_its_pip_as_well() -> None:
    probed, told = told_by(facts.probe_command(sys.executable)), told_by(facts.inside_command(sys.executable))
    asked = {"pip": facts.version_command([sys.executable, "-m", "pip"], os.environ, "/")}
    here = facts.ask(sys.executable, asked, {}, "", os.environ, "/")
    assert facts.read_probe(probed).python == here.python
    assert json.loads(probed)["libc"] == list(probe.libc())
    assert facts.read_inside(told, "") == here._replace(pip_config={})  # the image's own files are part of the image
    with pytest.raises(ConfigError):
        facts.read_inside(told, "x86-64-v9")


def test_musl_tells_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def confstr(_name: str) -> str:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "confstr", confstr)
    loader = tmp_path / "ld-musl-x86_64.so.1"
    assert probe.libc(str(loader)) == ("", "")
    loader.write_text(
        "#!/bin/sh\nprintf 'musl libc (x86_64)\\nVersion 1.2.4\\nDynamic Program Loader\\n' >&2\nexit 1\n"
    )
    loader.chmod(0o755)
    assert probe.libc(str(loader)) == ("musl", "1.2.4")


def executable(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_which_interpreter_a_command_is_for(tmp_path: Path) -> None:
    python = executable(tmp_path / "bin/python3", "")
    pip = executable(tmp_path / "bin/pip", f"#!{tmp_path}/other/python3.11\nimport sys\n")
    long = executable(
        tmp_path / "bin/pip3", f"#!/bin/sh\n'''exec' \"{tmp_path}/l o n g/python\" \"$0\" \"$@\"\n' '''\n"
    )
    shim = executable(tmp_path / "shim/pip", "#!/bin/bash\nexec something\n")
    environ = {"PATH": f"{tmp_path}/bin"}

    def found(*command: str) -> str:
        return facts.python_of(command, environ, str(tmp_path))

    assert found("python3", "-m", "pip", "install", "x") == python
    assert found("./bin/python3", "-m", "pip") == f"{tmp_path}/./bin/python3"
    assert found("env", "X=1", "pip", "install", "x") == f"{tmp_path}/other/python3.11"
    assert found(pip, "install", "x") == f"{tmp_path}/other/python3.11"
    assert found(long, "install", "x") == f"{tmp_path}/l o n g/python"
    assert found(shim, "install", "x") == python
    assert found("bash", "install.sh") == python
    assert found("python3.99", "-m", "pip") == ""
    assert facts.python_of(["bash"], {"PATH": "/nowhere"}, "/") == ""


def test_the_interpreter_that_pip_is_told_to_install_for(tmp_path: Path) -> None:
    own, pip = tmp_path / "env/bin/python", [sys.executable, "-m", "pip"]
    own.parent.mkdir(parents=True)
    own.symlink_to(sys.executable)
    for words, variables in (
        (["--python", str(own), "install", "x"], {}),
        (["install", "--python=env", "x"], {}),
        (["install", "x"], {"PIP_PYTHON": "env"}),
    ):
        assert facts.python_of([*pip, *words], {"PATH": "", **variables}, str(tmp_path)) == str(own)
    assert facts.python_of([*pip, "--python", "missing", "install", "x"], {}, str(tmp_path)) == sys.executable


def test_uv_says_which_interpreter_it_takes(tmp_path: Path) -> None:
    uv = str(Path(sys.executable).with_name("uv"))
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "UV_PYTHON_DOWNLOADS": "never"}
    given = facts.python_of([uv, "pip", "install", "--python", sys.executable, "x"], environ, str(tmp_path))
    assert Path(given).samefile(sys.executable)
    active = facts.python_of([uv, "pip", "install", "x"], {**environ, "VIRTUAL_ENV": sys.prefix}, str(tmp_path))
    assert Path(active).parent == Path(sys.prefix) / "bin"
    assert facts.python_of([uv, "pip", "install", "--python=3.99", "x"], environ, str(tmp_path)) == ""
