"""Trees that real installers leave, and their faults."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import default_environment

from imagefs.deps.check.rules import Finding, judge
from imagefs.deps.check.tree import Findings, Installation, check_tree
from imagefs.deps.install import compile_tree
from imagefs.deps.inventory import take
from tests.support.deps.wheels import editable, install, pip, uv, venv, wheel
from tests.support.waiting import eventually
from tests.tools.package_index import serving

LAYOUTS = ("pip --target", "uv --target", "uv in a venv")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of a few packages: a console script, data, a script, a header, a namespace package, a .pth."""
    folder = tmp_path_factory.mktemp("wheels")
    alpha = {
        "alpha/__init__.py": "def main(): print('alpha runs')\n",
        "alpha/sub/deep.py": "y = 2\n",
        "alpha/template.py": "print '{{ python 2 }}'\n",
        "alpha/tests/key.pem": "-----BEGIN PRIVATE KEY-----\nMIIE\n",
        "alpha/py.typed": "",
        "alpha-1.0.data/data/share/alpha/data.txt": "data",
        "alpha-1.0.data/scripts/raw": "#!python\nprint('raw runs')\n",
        "alpha-1.0.data/headers/alpha.h": "//",
    }
    wheel(folder, "alpha", alpha, programs={"alpha": "alpha:main"})
    wheel(
        folder,
        "beta",
        {"space/beta.py": "z = 3\n", "beta.pth": "# nothing\n"},
        requires=["alpha>=1", "gone; extra == 'x'"],
    )
    wheel(folder, "delta", {"space/delta.py": ""}, requires=["alpha>=2", "missing"])
    return folder


@pytest.fixture(scope="module")
def trees(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """alpha and beta by each installer, compiled. They are never changed."""
    top = tmp_path_factory.mktemp("trees")
    made = {name: top / name.replace(" ", "-") for name in LAYOUTS}
    packages = ("--find-links", wheels, "alpha", "beta")
    install(pip("--target", made["pip --target"], *packages))
    install(uv("--python", sys.executable, "--target", made["uv --target"], *packages))
    install(uv("--python", venv(made["uv in a venv"]), *packages))
    for tree in made.values():
        assert [os.path.basename(path) for path in compile_tree(sys.executable, [str(tree)])] == ["template.py"]
    return made


@pytest.fixture(params=LAYOUTS)
def tree(request: pytest.FixtureRequest, trees: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of one of them, to be changed."""
    return Path(shutil.copytree(trees[request.param], tmp_path / "tree", symlinks=True))


def check(tree: Path, at: Path | None = None, **more: Any) -> Findings:
    known = Installation(str(at or tree), {name: str(value) for name, value in default_environment().items()}, [""])
    return check_tree(take(str(tree)), known._replace(**more))


def site_of(tree: Path) -> Path:
    return next(iter(tree.glob("lib/*/site-packages")), tree)


def names_of(findings: Findings) -> set[str]:
    return {f"{one.kind}: {os.path.basename(one.subject)}" for one in findings.items}


def test_what_an_installer_leaves_may_be_published(tree: Path) -> None:
    found = check(tree)
    assert found.items == ()
    assert {"alpha 1.0", "beta 1.0"} <= set(found.distributions)
    assert judge(found.items).publish


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_what_an_installer_notes_of_a_password_is_found(installer: str, wheels: Path, tmp_path: Path) -> None:
    """pip leaves it out of direct_url.json; whatever others do, it is not published."""
    target = tmp_path / "target"
    with serving(wheels) as index:
        url = f"alpha @ {index.url.replace('//', '//me:hunter2@')}/alpha-1.0-py3-none-any.whl"
        if installer == "pip":
            install(pip("--target", target, url))
        else:
            command = uv("--python", sys.executable, "--target", target, "--cache-dir", tmp_path / "cache", url)
            install([word for word in command if word != "--offline"])
    noted = {
        str(path.relative_to(target))
        for path in target.rglob("*")
        if path.is_file() and b"hunter2" in path.read_bytes()
    }
    assert {one.subject for one in check(target).items if one.kind == "secret"} == noted


def test_conflicts_are_those_that_pip_sees(wheels: Path, tmp_path: Path) -> None:
    environment = tmp_path / "env"
    python = venv(environment)
    install(uv("--python", python, "--find-links", wheels, "--no-deps", "delta", "alpha"))
    ask = [sys.executable, "-m", "pip", "--python", python, "check"]
    asked = subprocess.run(ask, capture_output=True, text=True)
    assert asked.returncode == 1
    found = check(environment)
    assert found.items == (
        Finding("conflict", "delta 1.0", "requires alpha>=2, and 1.0 is installed"),
        Finding("conflict", "delta 1.0", "requires missing, which is not installed"),
    )
    assert len(asked.stdout.splitlines()) == len(found.items)
    assert not judge(found.items).publish
    assert judge(check(environment, tolerant=True).items).publish


def test_what_the_interpreter_has_besides(wheels: Path, trees: dict[str, Path], tmp_path: Path) -> None:
    target = tmp_path / "target"
    beta = ("--find-links", wheels, "--no-deps", "beta")
    install(uv("--python", sys.executable, "--target", target, *beta))
    assert names_of(check(target)) == {"conflict: beta 1.0"}
    beside = [str(trees["uv --target"])]
    assert names_of(check(target, beside=beside)) == set()
    environment = tmp_path / "env"
    install(uv("--python", venv(environment), *beta))
    assert names_of(check(environment, beside=beside)) == {"conflict: beta 1.0"}
    settings = environment / "pyvenv.cfg"
    settings.write_text(settings.read_text().replace("packages = false", "packages = true"))
    assert names_of(check(environment, beside=beside)) == set()


def test_an_editable_install(tmp_path: Path) -> None:
    python = venv(tmp_path / "env")
    source = editable(tmp_path / "my source", "mine")
    install(uv("--python", python, "--no-build-isolation", "--editable", source))
    found = check(tmp_path / "env")
    assert found.items == (Finding("editable", "mine 1.0", f"its modules are in {source}"),)
    assert not judge(found.items).publish
    assert check(tmp_path / "env", checked=True).items == ()


def test_pip_that_is_killed_is_seen(tmp_path: Path) -> None:
    """It is seen whatever its caller made of the exit status."""
    files = {f"many/m{number}.py": f"x = {number}\n" for number in range(1500)}
    many = wheel(tmp_path / "wheels", "many", files)
    environment = tmp_path / "env"
    command = pip(many, python=venv(environment))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    package = site_of(environment) / "many"
    eventually(package.exists, "pip writes the first file")
    os.killpg(process.pid, signal.SIGKILL)  # it runs another
    assert process.wait() == -signal.SIGKILL
    (finding,) = check(environment).items
    assert finding.kind == "orphan"
    assert finding.subject.endswith("site-packages/many")


@pytest.mark.root
def test_programs_that_give_privileges(tree: Path) -> None:
    folder = tree / "share/tool"
    folder.mkdir(parents=True)
    folder.chmod(0o2755)  # which gives none
    for name, mode in (("plain", 0o755), ("setuid", 0o4755), ("setgid", 0o2755), ("locked", 0o2644), ("able", 0o755)):
        (folder / name).touch()
        (folder / name).chmod(mode)
    os.setxattr(folder / "able", "security.capability", struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0))
    os.mknod(folder / "disk", stat.S_IFBLK | 0o600, os.makedev(7, 0))
    os.mknod(folder / "whiteout", stat.S_IFCHR, os.makedev(0, 0))
    found = [one for one in check(tree).items if one.kind == "privileged"]
    assert [(os.path.basename(one.subject), one.what) for one in found] == [
        ("able", "with capabilities"),
        ("disk", "a device"),
        ("setgid", "setgid"),
        ("setuid", "setuid"),
    ]
    assert "--allow-setuid publishes them" in judge(found).lines[0]
    assert not judge(found).publish
    assert [one for one in check(tree, setuid=True).items if one.kind == "privileged"] == []
