"""Packages that jobs really install, from a start that installs them to one on another host that mounts them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.deps.commanding import UV_ARGUMENTS, deps
from tests.support.deps.wheels import UV, sdist_in_c, uv, wheel
from tests.tools.imagefs_daemon import Service

pytestmark = [pytest.mark.mount, pytest.mark.root]

PYTHON = sys.executable


@pytest.fixture
def wheels(folder: Path) -> Path:
    """Besides, what is not modules alone: programs, scripts, data outside of them, a namespace that two share, C."""
    place = folder / "wheels"
    files = {
        "space/one.py": "VALUE = 1\n",
        "tool/__init__.py": "def main(): print('tool runs')\n",
        "tool/table.txt": "inside",
        "tool-1.0.data/data/share/tool/table.txt": "outside",
        "tool-1.0.data/data/etc/tool.toml": "[tool]\n",
        "tool-1.0.data/scripts/raw": "#!python\nprint('raw runs')\n",
        "tool-1.0.data/headers/tool.h": "// C\n",
    }
    wheel(place, "tool", files, programs={"tool": "tool:main"})
    wheel(place, "other", {"space/two.py": "VALUE = 2\n"})
    sdist_in_c(place, "gamma", 42)
    return place


def run(*command: object, path: Path | None = None) -> str:
    environment = {**os.environ, "PYTHONPATH": str(path or "")}
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def seen_in_a_directory(target: Path) -> list[str]:
    told = "import space.one, space.two, tool; print(space.one.VALUE + space.two.VALUE)"
    return [
        run(PYTHON, "-P", "-c", told, path=target),
        run(target / "bin/tool", path=target),
        run(PYTHON, target / "bin/raw"),
        *((target / name).read_text() for name in ("tool/table.txt", "share/tool/table.txt", "etc/tool.toml")),
    ]


def seen_in_an_environment(target: Path) -> list[str]:
    told = "import space.one, space.two; print(space.one.VALUE + space.two.VALUE)"
    (header,) = target.glob("include/**/tool.h")
    return [
        run(target / "bin/python", "-P", "-c", told),
        run(target / "bin/tool"),
        run(PYTHON, target / "bin/raw"),
        *((target / name).read_text() for name in ("share/tool/table.txt", "etc/tool.toml")),
        header.read_text(),
    ]


@pytest.mark.parametrize(
    ("form", "seen"),
    [("pip", seen_in_a_directory), ("uv", seen_in_a_directory), ("venv", seen_in_an_environment)],
    ids=["pip", "uv", "venv"],
)
def test_all_of_it_is_mounted(
    service: Service, folder: Path, wheels: Path, target: Path, form: str, seen: Callable[[Path], list[str]]
) -> None:
    more = ("--no-index", "--offline") if form == "uv" else ()
    in_c = ("gamma==1.0",) if form == "uv" else ()  # pip builds it likewise, and slowly
    words = ("--no-build-isolation", "--find-links", "wheels", *more, "tool==1.0", "other==1.0", *in_c)
    told = deps(service, form, "--wait", "--target", target, "--python", PYTHON, *words)
    assert "published" in told
    assert " not published" not in told
    installed, kinds = seen(target), tree_of(target)
    assert installed[0] == "3"
    shutil.rmtree(target)
    probe = ("--probe", "import tool") if form == "venv" else ()
    assert "mounted at" in deps(service, form, "--target", target, "--python", PYTHON, *probe, *words)
    assert (seen(target), tree_of(target)) == (installed, kinds)
    if in_c:
        assert run(PYTHON, "-P", "-c", "import gamma; print(gamma.value())", path=target) == "42"


def tree_of(target: Path) -> dict[str, tuple[int, int, int, int]]:
    """Mode, owners and time in nanoseconds of all there is."""
    found = {str(path.relative_to(target)): path.lstat() for path in target.rglob("*")}
    return {name: (one.st_mode, one.st_uid, one.st_gid, one.st_mtime_ns) for name, one in found.items()}


def test_a_script_that_makes_an_environment_of_its_own(service: Service, folder: Path, target: Path) -> None:
    """Its own interpreter compiles it, whichever ran the script."""
    script = folder / "install.sh"
    script.write_text(
        f"set -e\n{UV} venv --offline --python {PYTHON} {target}\n"
        f"{' '.join(uv('--python', target / 'bin/python', '--find-links', 'wheels', 'heavy', 'light'))}\n"
    )
    other = folder / "python"
    other.write_text(f"""#!/bin/sh\ncase "$*" in *'"workers"'*) exit 1 ;; *) exec {PYTHON} "$@" ;; esac\n""")
    other.chmod(0o755)
    arguments = ("--python", other, "--target", target, "--input", "wheels", "--", "sh", script)
    assert " not published" not in deps(service, "run", "--wait", *arguments)
    shutil.rmtree(target)
    assert "mounted at" in deps(service, "run", *arguments)
    verbose = subprocess.run([target / "bin/python", "-v", "-c", "import heavy"], capture_output=True, text=True).stderr
    assert re.search(r"code object from '.*/heavy/__pycache__/__init__\.", verbose)


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
