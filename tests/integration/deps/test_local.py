"""Directories that are built to wheels: by pip and uv themselves, with a backend of the project's own."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from imagefs.deps import inventory
from imagefs.deps.command import calls
from imagefs.deps.environment import build_variables, compilers
from imagefs.deps.local import BuildOrder, Scratch, Wheel, build_here, differs, read_wheel
from imagefs.deps.prebuilt import stand_in
from imagefs.errors import SnapshotError
from tests.support.deps.project import SETTINGS, Project
from tests.support.deps.wheels import uv, wheel

PIP = [sys.executable, "-m", "pip", "install", "--no-index", "--target", "/opt/deps", "-r", "requirements.txt"]
BY_UV = [*uv("--target", "/opt/deps"), "-r", "requirements.txt"]


@pytest.fixture
def own(tmp_path: Path) -> Project:
    (tmp_path / "job").mkdir()
    return Project(tmp_path / "job")


@pytest.fixture
def project(own: Project) -> Path:
    return own.path


def built(project: Path, command: Sequence[str]) -> Wheel:
    (call,) = calls(command)
    order = BuildOrder(call, command, (), sys.executable, [str(project)], str(project.parent))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    return build_here(order, {**kept, "UV_NO_CONFIG": "1"})[str(project)]


@pytest.mark.root
def test_whatever_a_build_reads_is_in_its_wheel(own: Project, project: Path) -> None:
    """It depends on tags of git and on files behind links out of the project, and on nothing that builds leave."""
    first = built(project, BY_UV)
    names = sorted(path.name for path in project.iterdir())
    assert (first.name, first.version, "build" in names) == ("own", "1.0", False)
    (project / "build").mkdir()
    (project / "build/left").write_text("left by another")
    (project / "own.egg-info").mkdir()
    assert built(project, BY_UV) == first
    own.shared.write_text("y = 2\n")
    second = built(project, BY_UV)
    own.tag("2.0")
    third = built(project, BY_UV)
    assert third.version == "2.0"
    assert len({first.digest, second.digest, third.digest}) == 3
    assert (project / "build/left").read_text() == "left by another"


def test_a_project_that_cannot_be_built(project: Path) -> None:
    (project / "own.py").unlink()
    with pytest.raises(SnapshotError, match=r"own cannot be built to a wheel: .*own\.py"):
        built(project, PIP)


def test_the_digest_of_a_wheel_knows_no_times(tmp_path: Path) -> None:
    def made(folder: str, year: int, data: str = "x = 1\n", mode: int = 0o644) -> Wheel:
        path = tmp_path / folder / "own-1.0-py3-none-any.whl"
        path.parent.mkdir()
        with zipfile.ZipFile(path, "w") as archive:
            member = zipfile.ZipInfo("own.py", (year, 1, 1, 0, 0, 0))
            member.external_attr = mode << 16
            archive.writestr(member, data)
            archive.writestr("own-1.0.dist-info/RECORD", str(year))
        return read_wheel(path)

    first = made("a", 2020)
    assert made("b", 2024) == first
    assert len({first.digest, made("c", 2020, "x = 2\n").digest, made("d", 2020, mode=0o755).digest}) == 3
    (tmp_path / "own-1.0-py3-none-any.whl").write_text("no archive")
    with pytest.raises(SnapshotError, match="is no wheel"):
        read_wheel(tmp_path / "own-1.0-py3-none-any.whl")


def test_what_was_installed_is_compared_with_the_wheel(tmp_path: Path) -> None:
    path = wheel(
        tmp_path, "own", {"own.py": "x = 1\n", "own-1.0.data/scripts/run": "#!python\n"}, programs={"p": "own:x"}
    )
    same = read_wheel(path)
    subprocess.run(uv("--python", sys.executable, "--target", tmp_path / "target", path), check=True)
    seen = inventory.take(str(tmp_path / "target"))
    assert differs([same], seen) == ""
    other = read_wheel(wheel(tmp_path / "other", "own", {"own.py": "x = 2\n"}))
    assert "was changed meanwhile" in differs([same, other], seen)
    assert "is not what was installed" in differs([same._replace(version="2.0")], seen)
    assert "is not what was installed" in differs([same._replace(name="another")], seen)


def test_which_variables_decide_what_is_built() -> None:
    decisive = {"CFLAGS", "CC", "CUDA_HOME", "TORCH_CUDA_ARCH_LIST", "CMAKE_ARGS", "LDSHARED", "CARGO_BUILD_TARGET"}
    decisive |= {"PKG_CONFIG_PATH", "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_OWN", "HDF5_DIR", "CPATH"}
    idle = {"MAX_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL", "HOME", "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES", "BUILD_ID"}
    idle |= {"CARGO_REGISTRY_TOKEN", "CARGO_REGISTRIES_OWN_TOKEN"}
    found = build_variables(dict.fromkeys(decisive | idle, "1") | {"CMAKE_ARGS": "-DURL=https://u:p@host"})
    assert set(found) == decisive
    assert found["CMAKE_ARGS"] == "-DURL=https://host"


def test_compilers_are_those_in_force(tmp_path: Path) -> None:
    for name in ("cc", "g++", "nvcc", "rustc"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho 'about {name}'\n[ {name} != nvcc ] || echo 'release 12'\n")
        (tmp_path / name).chmod(0o755)
    found = {"cc": "about cc", "c++": "about g++", "nvcc": "release 12", "rustc": "about rustc"}
    assert compilers({"PATH": str(tmp_path)}) == found
    assert compilers({"PATH": str(tmp_path), "CC": f"{tmp_path}/rustc -x"}) == found | {"cc": "about rustc"}
    (tmp_path / "cc").write_text("#!/bin/sh\nexit 1\n")
    assert "cc" not in compilers({"PATH": str(tmp_path)})
    assert compilers({"PATH": "/nowhere"}) == {}


SETTINGS_OF_OTHERS = [
    "",
    SETTINGS,
    '[project]\nname = "own"\n\n[build-system]\nrequires = [\n  "a",\n]\n[tool.uv.sources]\nx = { path = "../x" }\n',
    '[ build-system ]\nrequires = ["a[b]"]\nbuild-backend = "c"',
]


@pytest.mark.parametrize("settings", SETTINGS_OF_OTHERS)
def test_a_stand_in_changes_nothing_but_the_build_system(project: Path, tmp_path: Path, settings: str) -> None:
    (project / "pyproject.toml").write_text(settings)
    made = wheel(tmp_path / "wheels", "own", {"own.py": "x = 1\n"})
    assert stand_in(str(project), str(made), str(tmp_path / "in"))
    found = tomllib.loads((tmp_path / "in/pyproject.toml").read_text())
    system = found.pop("build-system")
    before = tomllib.loads(settings)
    before.pop("build-system", None)
    assert found == before
    backend = runpy.run_path(str(tmp_path / "in" / system["backend-path"][0] / f"{system['build-backend']}.py"))
    assert (tmp_path / backend["build_wheel"](str(tmp_path))).read_bytes() == made.read_bytes()
    info = tmp_path / backend["prepare_metadata_for_build_wheel"](str(tmp_path))
    assert (info / "METADATA").read_text().startswith("Metadata-Version")


@pytest.mark.parametrize("settings", ["build-system.requires = []\n", "not toml", '[["build-system"]]\n'])
def test_settings_that_cannot_be_kept_beside_another_build_system(project: Path, tmp_path: Path, settings: str) -> None:
    (project / "pyproject.toml").write_text(settings)
    made = wheel(tmp_path / "wheels", "own", {"own.py": "x = 1\n"})
    assert not stand_in(str(project), str(made), str(tmp_path / "in"))
    assert not (tmp_path / "in").exists()


def test_a_project_around_its_target_is_seen_as_it_is(project: Path, tmp_path: Path) -> None:
    made = wheel(tmp_path / "wheels", "own", {"own.py": "x = 1\n"})
    with Scratch([str(project / "vendor")]) as scratch:
        scratch.keep(str(project), made)
        assert scratch.command(["true"]) == ["true"]
    with Scratch([f"{project}-vendor"]) as scratch:
        scratch.keep(str(project), made)
        assert scratch.seen(str(project))
        folder = scratch.downloads()
    assert not os.path.exists(folder)
