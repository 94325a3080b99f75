"""Packages that jobs really install, from a start that installs them to one on another host that mounts them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.deps.commanding import UV_ARGUMENTS, deps
from tests.support.deps.wheels import wheel
from tests.tools.imagefs_daemon import Service

pytestmark = [pytest.mark.mount, pytest.mark.root]

PYTHON = sys.executable


@pytest.fixture
def wheels(folder: Path) -> Path:
    """Besides, what is not modules alone: programs, scripts, data outside of them, a namespace that two share, and what
    looks like a fault and is none."""
    place = folder / "wheels"
    files = {
        "space/one.py": "VALUE = 1\n",
        "tool/__init__.py": "def main(): print('tool runs')\n",
        "tool/table.txt": "inside",
        "tool-1.0.data/data/share/tool/table.txt": "outside",
        "tool-1.0.data/data/etc/tool.toml": "[tool]\n",
        "tool-1.0.data/scripts/raw": "#!python\nprint('raw runs')\n",
        "tool-1.0.data/headers/tool.h": "// C\n",
        "tool/template.py": "print '{{ python 2 }}'\n",
        "tool/tests/key.pem": "-----BEGIN PRIVATE KEY-----\nMIIE\n",
        "tool.pth": "# nothing\n",
    }
    wheel(place, "tool", files, programs={"tool": "tool:main"})
    wheel(place, "other", {"space/two.py": "VALUE = 2\n"}, requires=["tool>=1", "gone; extra == 'x'"])
    return place


def run(*command: object, path: Path | None = None) -> str:
    environment = {**os.environ, "PYTHONPATH": str(path or "")}
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def seen(target: Path, form: str) -> list[object]:
    """The output of programs, and all files with mode, owners, time in nanoseconds and bytes."""
    told = "import space.one, space.two, tool; print(space.one.VALUE + space.two.VALUE)"
    said = [
        run(target / "bin/python" if form == "venv" else PYTHON, "-P", "-c", told, path=target),
        run(target / "bin/tool", path=target),
        run(PYTHON, target / "bin/raw"),
    ]
    return [*said, *map(facts_of, sorted(target.rglob("*")))]


def facts_of(path: Path) -> tuple[object, ...]:
    one = path.lstat()
    data = path.read_bytes() if path.is_file() else b""
    return str(path), one.st_mode, one.st_uid, one.st_gid, one.st_mtime_ns, data


@pytest.mark.parametrize("form", ["pip", "uv", "venv"])
def test_all_of_it_is_mounted(service: Service, folder: Path, wheels: Path, target: Path, form: str) -> None:
    more = ("--no-index", "--offline") if form == "uv" else ()
    words = ("--find-links", "wheels", *more, "tool==1.0", "other==1.0")
    told = deps(service, form, "--wait", "--target", target, "--python", PYTHON, *words)
    assert "published" in told
    assert " not published" not in told
    installed = seen(target, form)
    assert installed[:3] == ["3", "tool runs", "raw runs"]
    shutil.rmtree(target)
    probe = ("--probe", "import tool") if form == "venv" else ()
    assert "mounted at" in deps(service, form, "--target", target, "--python", PYTHON, *probe, *words)
    assert seen(target, form) == installed


def test_a_secret_in_the_settings_of_an_installer(service: Service, folder: Path, target: Path) -> None:
    """It is no part of a key, and gets nowhere."""
    settings = folder / "uv.toml"
    settings.write_text("index-url = 'https://me:hunter2@index.example/simple'\n")
    assert " not published" not in deps(service, "uv", "--wait", "--target", target, *UV_ARGUMENTS)
    shutil.rmtree(target)
    settings.write_text("index-url = 'https://me:hunter3@index.example/simple'\n")
    assert "mounted at" in deps(service, "uv", "--target", target, *UV_ARGUMENTS)
    for place in (folder.parent / "store", Path(service.settings.cache)):
        assert not any(b"hunter2" in path.read_bytes() for path in place.rglob("*") if path.is_file())
