"""The wheel, made from the source distribution, in a clean environment of each version of Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import stripefs
from stripefs.fuse import kernel
from tests.support.checkout import CHECKOUT

UV = Path(sys.executable).with_name("uv")
PYTHONS = Path(sys.prefix) / "pythons"  # made by ./scripts/test

PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
SPOKEN = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if "Language :: Python :: 3." in text]
PREBUILT = sorted(PROJECT["optional-dependencies"].keys() - {"mount", "all"})

CONTENT = bytes(range(256)) * 8192


@dataclass(frozen=True)
class Environment:
    """A virtual environment."""

    folder: Path

    def run(self, program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        """A command of the environment, with no other environment's commands on PATH."""
        return subprocess.run(
            [self.folder / "bin" / program, *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": f"{self.folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(self.folder)},
        )

    def output(self, program: str, *arguments: object) -> str:
        """Standard output of a command that succeeds."""
        done = self.run(program, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def uv(*arguments: object, path: str | None = None) -> None:
    """Run uv, with the versions that are tested as constraints; `path` in place of PATH."""
    environment = {**os.environ, "UV_CONSTRAINT": str(CHECKOUT / "requirements/run.lock")}
    done = subprocess.run(
        [UV, "--quiet", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**environment, "PATH": os.environ["PATH"] if path is None else path},
    )
    assert done.returncode == 0, done.stderr


def environment(folder: Path, python: str, requirement: str, *options: object) -> Environment:
    """A new environment at `folder` with what one requirement brings, installed where no compiler is found."""
    uv("venv", "--python", python, folder)
    install = ["pip", "install", "--python", folder / "bin/python", "--only-binary", ":all:"]
    uv(*install, *options, requirement, path=f"{folder}/bin")
    return Environment(folder)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution alone."""
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, source)
    for package in ("stripefs", "imagefs"):
        ignored = shutil.ignore_patterns("__pycache__", "snapshots_pb2.*")
        shutil.copytree(CHECKOUT / package, source / package, ignore=ignored)
    shutil.copytree(CHECKOUT / "docs/man", source / "docs/man")
    uv("build", "--no-build-isolation", "--offline", "--python", sys.executable, "--out-dir", made, source)
    return next(made.glob("*.whl"))


@pytest.fixture(scope="module")
def without_extras(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Environment]:
    """The environment of the wheel alone for each version of Python."""
    folder = tmp_path_factory.mktemp("environments")

    @cache
    def made(version: str) -> Environment:
        python = PYTHONS / f"python{version}"
        assert python.exists(), f"{python} is missing: ./scripts/test makes it"
        return environment(folder / version, str(python), f"bootseer @ {wheel.as_uri()}")

    return made


@pytest.fixture(params=SPOKEN)
def base(request: pytest.FixtureRequest, without_extras: Callable[[str], Environment]) -> Environment:
    """The wheel alone, for each version."""
    return without_extras(request.param)


@pytest.fixture
def oldest(without_extras: Callable[[str], Environment]) -> Environment:
    """The wheel alone, for the oldest version."""
    return without_extras(SPOKEN[0])


PROGRAM = """
import importlib.util, sys
import stripefs

source, target = sys.argv[1:]
with stripefs.open(source) as file, stripefs.open(target, "wb") as copy:
    content = file.read()
    copy.write(content)
with stripefs.open(target) as file:
    first, last = file.read_ranges([(0, 100), (len(content) - 5, 5)])
assert (first, last) == (content[:100], content[-5:])
assert importlib.util.find_spec("pyfuse3") is None
print(*sys.version_info[:2], len(content), sep=".")
"""


def test_a_program_reads_and_writes_without_compiler_and_fuse(base: Environment, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(CONTENT)
    told = base.output("python", "-c", PROGRAM, tmp_path / "source", tmp_path / "target")
    version, _, length = told.strip().rpartition(".")
    assert version in SPOKEN
    assert int(length) == len(CONTENT)
    assert (tmp_path / "target").read_bytes() == CONTENT


def test_commands_answer(base: Environment, tmp_path: Path) -> None:
    """Copies are made, and events of a start are collected, without an extra."""
    for program in PROJECT["scripts"]:
        assert base.output(program, "--version") == f"{program} {stripefs.__version__}\n"
        assert base.output(program, "--help").startswith("Usage: ")
    (tmp_path / "source").write_bytes(CONTENT)
    base.output("stripefs", "cp", tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == CONTENT
    events, collected = tmp_path / "events", tmp_path / "collected"
    base.output("imagefs", "startup", "trace", "--events", events, "--", "true")
    base.output("imagefs", "startup", "collect", events, collected)
    assert [path for path in collected.rglob("*.jsonl") if path.stat().st_size]


def test_each_command_has_a_man_page(oldest: Environment) -> None:
    """man(1) looks beside each directory of PATH, so in the environment's share/man for its bin."""
    installed = {page.name: page.read_text() for page in (oldest.folder / "share/man").glob("man[18]/*")}
    assert installed == {page.name: page.read_text() for page in (CHECKOUT / "docs/man").iterdir()}
    assert {"stripefs.1", "stripefs-mount.1", "imagefs.1", "imagefs-run.1", "mount.stripefs.8"} <= installed.keys()


@pytest.mark.parametrize(
    ("words", "package", "extra", "code"),
    [
        ("stripefs mount SOURCE EMPTY", "pyfuse3", "mount", 2),
        ("stripefs mount --foreground SOURCE EMPTY", "pyfuse3", "mount", 2),
        ("mount.stripefs SOURCE EMPTY", "pyfuse3", "mount", 1),
        ("imagefs daemon --runtime RUNTIME", "pyfuse3", "mount", 2),
        ("imagefs ls SOURCE", "lz4", "images", 2),
        ("imagefs build dir:SOURCE STORE", "lz4", "images", 2),
        ("imagefs deps key --target TARGET -- pip install six", "packaging", "images", 2),
        ("imagefs startup report EVENTS", "numpy", "arrow", 2),
        ("imagefs snapshotter", "grpc", "containerd", 2),
    ],
)
def test_an_extra_that_is_missing_is_named(
    oldest: Environment, tmp_path: Path, words: str, package: str, extra: str, code: int
) -> None:
    for name in ("SOURCE", "EMPTY", "EVENTS"):
        (tmp_path / name).mkdir()
    (tmp_path / "EVENTS/a.jsonl").write_text("{}\n")
    for name in ("SOURCE", "EMPTY", "EVENTS", "RUNTIME", "STORE", "TARGET"):
        words = words.replace(name, str(tmp_path / name))
    program, *arguments = words.split()
    done = oldest.run(program, *arguments)
    told = f"the Python package {package} is not installed; pip install 'bootseer[{extra}]'\n"
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == f"{'imagefs' if program == 'imagefs' else 'stripefs'}: {told}"


def test_a_store_that_an_extra_brings_is_refused_with_its_name(oldest: Environment) -> None:
    done = oldest.run("stripefs", "ls", "s3://bucket")
    assert done.returncode == 2
    assert (
        done.stderr == "stripefs: s3://bucket: this store is reached through pyarrow; pip install 'bootseer[arrow]'\n"
    )


@pytest.mark.parametrize("version", SPOKEN)
def test_the_other_extras_need_no_compiler_either(wheel: Path, tmp_path: Path, version: str) -> None:
    (tmp_path / "in").write_text(f"bootseer[{','.join(PREBUILT)}] @ {wheel.as_uri()}\n")
    uv("pip", "compile", "--only-binary", ":all:", "--python-version", version, "-o", tmp_path / "out", tmp_path / "in")
    assert "pyarrow==" in (tmp_path / "out").read_text()


@pytest.fixture
def unmounted(tmp_path: Path) -> Iterator[Path]:
    """A mountpoint with nothing mounted on it when the test has ended."""
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    yield mountpoint
    if kernel.find_mount(str(mountpoint)):
        subprocess.run(["umount", "--lazy", mountpoint], check=True)


@pytest.mark.mount
@pytest.mark.root
def test_the_extra_for_mounts_mounts(wheel: Path, tmp_path: Path, unmounted: Path) -> None:
    """pyfuse3 is compiled as for `.venv`, whose wheel of it pip has kept."""
    built = tmp_path / "built"
    pin = re.search(r"^pyfuse3==\S+", (CHECKOUT / "requirements/run.lock").read_text(), re.MULTILINE)
    assert pin is not None
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(built),
        pin[0],
    ]
    subprocess.run(build, check=True, capture_output=True)
    requirement = f"bootseer[mount] @ {wheel.as_uri()}"
    options = ("--find-links", built, "--no-verify-hashes")  # the lock knows the digest of pyfuse3's source alone
    mounting = environment(tmp_path / "environment", sys.executable, requirement, *options)
    (tmp_path / "source").mkdir()
    (tmp_path / "source/file").write_bytes(CONTENT)
    mounting.output("stripefs", "mount", tmp_path / "source", unmounted)
    assert (unmounted / "file").read_bytes() == CONTENT
    mounting.output("stripefs", "umount", unmounted)
    assert kernel.find_mount(str(unmounted)) is None
