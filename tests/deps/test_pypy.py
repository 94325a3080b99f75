"""Another interpreter than the tests' own, which is no CPython: what is installed for it is kept for it alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from imagefs.deps.bytecode import compile_tree
from tests.deps.commanding import ARGUMENTS, deps, names
from tests.deps.wheels import UV
from tests.imagefs.service import Service

PYPY = shutil.which("pypy3") or "pypy3"

_IMPORT = """
import json
from importlib.machinery import SourceFileLoader
compiled, compile_one = [], SourceFileLoader.source_to_code
def source_to_code(loader, data, path):  # PyPy raises no audit event for it
    compiled.append(path)
    return compile_one(loader, data, path)
SourceFileLoader.source_to_code = source_to_code
import heavy, light
top = heavy.__file__.rpartition("heavy")[0]
print(json.dumps([heavy.VALUE + light.VALUE, [path[len(top):] for path in compiled if path.startswith(top)]]))
"""


def imported(python: str | Path, path: Path) -> tuple[int, list[str]]:
    """What a job computes with both packages, and the sources below `path` that it had to compile."""
    environment = {**os.environ, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([python, "-c", _IMPORT], env=environment, cwd="/", capture_output=True, check=True)
    value, compiled = json.loads(done.stdout)
    return value, compiled


def test_equal_sources_have_equal_bytecode(tmp_path: Path) -> None:
    """Whatever else was compiled before."""
    (tmp_path / "first.py").write_text("common = 'text'\nprint(common.common)\n")
    source = tmp_path / "a.py"
    source.write_text("def f(common): 'text'\n")
    seen = set()
    for paths in ([tmp_path], [source]):
        assert compile_tree(PYPY, list(map(str, paths)), workers=1).failed == ()
        (made,) = (tmp_path / "__pycache__").glob("a.*")
        seen.add(made.read_bytes())
    assert len(seen) == 1


def test_compiling_takes_little_memory(tmp_path: Path) -> None:
    """However much there is to compile."""
    source = "".join(
        f"def f{one}(self, name, *, key=('a', {one})):\n    return self.f{one}(key)\n" for one in range(900)
    )
    for number in range(60):
        (tmp_path / f"m{number}.py").write_text(source)
    limited = tmp_path / "limited"
    limited.write_text(f'#!/bin/sh\nulimit -v 524288\nexec {PYPY} "$@"\n')
    limited.chmod(0o755)
    assert compile_tree(str(limited), [str(tmp_path)], workers=1).compiled == 60


@pytest.mark.mount
@pytest.mark.root
@pytest.mark.parametrize("form", ["pip", "uv", "venv"])
def test_what_is_mounted_is_not_compiled_again(service: Service, folder: Path, target: Path, form: str) -> None:
    more = ("--no-index", "--offline") if form == "uv" else ()
    arguments = (form, "--wait", "--python", "pypy3", "--target", target, *ARGUMENTS, *more)
    python = target / "bin/python" if form == "venv" else PYPY
    assert "published" in deps(service, *arguments)
    shutil.rmtree(target)
    assert f"mounted at {target}" in deps(service, *arguments)
    assert imported(python, target) == (15, [])
    if form == "pip":  # without bytecode it would have been
        plain = shutil.copytree(target, folder / "plain", ignore=shutil.ignore_patterns("__pycache__"))
        assert imported(PYPY, plain) == (15, ["heavy/__init__.py", "light/__init__.py"])


@pytest.mark.mount
@pytest.mark.root
def test_neither_has_what_was_installed_for_the_other(service: Service, folder: Path, target: Path) -> None:
    pythons, told = (PYPY, sys.executable), []
    for python in pythons:
        told.append(deps(service, "pip", "--wait", "--python", python, "--target", target, *ARGUMENTS))
        shutil.rmtree(target)
    assert [line.count("published") for line in told] == [1, 1]
    found = names(folder)
    assert len(found) == 2
    hits = []
    for python in pythons:
        hits.append(deps(service, "pip", "--python", python, "--target", target, *ARGUMENTS))
        assert imported(python, target) == (15, [])
        service.ok("umount", str(target))
    assert sorted(hit.partition("hit ")[2][:12] for hit in hits) == sorted(name[:12] for name in found)
    assert "python.implementation" in service.ok("deps", "diff", *found)


def test_uv_and_pip_tell_the_interpreter(folder: Path, service: Service, target: Path) -> None:
    """Whatever words name it."""
    commands = (
        [PYPY, "-m", "pip", "install", "--target", target, *ARGUMENTS],
        [UV, "pip", "install", "--python", "pypy3", "--offline", "--target", target, *ARGUMENTS],
        [UV, "pip", "install", f"--python={PYPY}", "--offline", "--target", target, *ARGUMENTS],
    )
    for command in commands:
        key = json.loads(service.ok("deps", "key", "--json", "--target", str(target), "--", *map(str, command)))
        assert key["key"]["components"]["python"]["implementation"] == "pypy"
