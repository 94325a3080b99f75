"""Keys of dependency snapshots against fresh installations: equal keys must mean equal trees.

A job's requirements, its project, the build variables and the index are changed one at a time, back and forth, so that
many states come again. For each the key is asked as a start does it, with pip or uv and nothing cached, and the command
is run as a user writes it. A state whose key an earlier one had is a hit. A hit whose earlier tree differs from the
fresh one is wrong, and ends the check.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imagefs.deps import inventory
from imagefs.deps.key import Facts, Key, Request, Target
from imagefs.deps.keybuilder import Answer, ask
from imagefs.deps.local import differs
from imagefs.deps.resolver import LockCache
from stripefs.errors import StripefsError
from tests.soak.right import Context, Violation
from tests.support.deps.requests import NoIndex, environ
from tests.support.deps.wheels import UV, sdist, wheel
from tests.tools.package_index import serving

__all__ = ["check"]

_BY_PIP = 20
"""One in so many installations is pip's, which takes ten times as long as uv's."""

_BACKEND = """
    import os, pathlib, subprocess, zipfile, hashlib, base64
    def said(*command):
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    def build_wheel(folder, config_settings=None, metadata_directory=None):
        {version}
        files = {{"{name}/" + one.name: one.read_bytes() for one in sorted(pathlib.Path("{name}").glob("*.py"))}}
        built = repr([os.environ.get("CFLAGS"), os.environ.get("CMAKE_ARGS"), said(os.environ["CC"], "--version")])
        files["{name}/built.py"] = built.encode()
        info = f"{name}-{{version}}.dist-info"
        files[info + "/METADATA"] = f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {{version}}\\n".encode()
        files[info + "/WHEEL"] = b"Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        rows = ""
        for path, data in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows += f"{{path}},sha256={{digest}},{{len(data)}}\\n"
        files[info + "/RECORD"] = (rows + info + "/RECORD,,\\n").encode()
        target = f"{name}-{{version}}-py3-none-any.whl"
        with zipfile.ZipFile(os.path.join(folder, target), "w") as archive:
            for path, data in files.items():
                archive.writestr(path, data)
        pathlib.Path("build/lib/{name}").mkdir(parents=True, exist_ok=True)
        pathlib.Path("build/lib/{name}/left.py").write_text("left by a build")
        return target
"""

_PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "{name}"
dynamic = ["version"]
"""

_DESCRIBED = 'version = said("git", "describe", "--tags") + ".post" + open("../VERSION").read()'


def check(context: Context) -> dict[str, int | float]:
    """300 mutations; how many states hit, missed, missed without need, and were not to be kept."""
    counters: dict[str, int | float] = dict.fromkeys(
        ("mutations", "hits", "misses", "needless_misses", "not_kept", "failed"), 0
    )
    chance = context.random("dependency keys")
    with _Job(context.folder) as job:
        known: dict[str, str] = {}  # trees by key
        trees: set[tuple[str, str]] = set()
        job.state = dict(_FIXED)
        for number in range(context.count(300)):
            name = chance.choice(list(_CHOICES))
            job.state[name] = (job.state[name] + chance.randrange(1, _CHOICES[name])) % _CHOICES[name]
            job.apply()
            tool = "pip" if number % _BY_PIP == _BY_PIP - 1 else "uv"
            counters["mutations"] += 1
            answer = job.asked(tool)
            tree = job.installed(tool)
            if tree is None:
                counters["failed"] += 1
            elif answer is None or not isinstance(answer.found, Key):
                counters["not_kept"] += 1
            elif answer.found.digest in known:
                counters["hits"] += 1
                if known[answer.found.digest] != tree:
                    raise Violation(
                        f"mutation {number} ({name} of {job.state}, {tool}) hits a snapshot of another tree"
                    )
            elif why := differs(answer.wheels, inventory.take(str(job.target))):
                raise Violation(f"mutation {number} ({name} of {job.state}, {tool}): {why}")
            else:
                counters["misses"] += 1
                counters["needless_misses"] += (tool, tree) in trees
                trees.add((tool, tree))
                known[answer.found.digest] = tree
            if number % 25 == 24:
                context.say(f"dependency keys: {counters}")
    return counters


_CHOICES: Mapping[str, int] = {
    "alpha": 4,  # the form of its requirement
    "beta": 2,  # which needs alpha: asked for, or not
    "gamma": 2,  # an sdist
    "project": 2,
    "module": 3,
    "beside": 2,  # a file beside the project that its setup reads
    "shared": 3,  # a file outside of the project, which a link leads to
    "tag": 2,
    "left": 3,  # by builds, in the project
    "cflags": 3,
    "cmake": 2,
    "compiler": 2,
    "bytes": 2,  # of one version on the index
    "newest": 2,  # version on the index
    "comment": 3,
}
"""Variables of a key, with the number of values of each."""

_FIXED: Mapping[str, int] = dict.fromkeys(_CHOICES, 0)
"""The first state."""


class _Job:
    """A job's folder, an index and an environment, as `state` says once it is applied."""

    def __init__(self, folder: Path) -> None:
        self.state: dict[str, int] = {}
        self.target = folder / "target"
        self._folder = folder / "job"
        self._project = self._folder / "own"
        self._packages = folder / "packages"
        self._cache = str(folder / "cache")
        self._compiler = folder / "cc"
        self._serving = serving(folder / "served")
        self._index = ""
        quiet = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        quiet |= {"UV_NO_CONFIG": "1", "UV_NO_CACHE": "1", "PIP_COMPILE": "0", "PIP_ROOT_USER_ACTION": "ignore"}
        self._environ = environ(self._folder, **quiet, HOME=str(folder), CC=str(self._compiler))
        self._make()

    def __enter__(self) -> _Job:
        self._index = f"{self._serving.__enter__().url}/"
        return self

    def __exit__(self, *error: Any) -> None:
        self._serving.__exit__(*error)

    def apply(self) -> None:
        """Let files, index and environment be what the state says."""
        state = self.state
        asked = ("alpha==1.0", "alpha==1.1", "alpha>=1.0", "alpha")[state["alpha"]]
        lines = [asked, *(["beta==1.0"] if state["beta"] else []), *(["gamma==1.0"] if state["gamma"] else [])]
        lines += [*(["./own"] if state["project"] else []), *["# a comment"] * state["comment"]]
        (self._folder / "requirements.txt").write_text("\n".join([*lines, ""]))
        (self._project / "own/__init__.py").write_text(f"x = {state['module']}\n")
        (self._folder / "VERSION").write_text(str(state["beside"]))
        (self._folder / "shared/shared.py").write_text(f"y = {state['shared']}\n")
        self._git("tag", "--force", "v1.0" if not state["tag"] else "v2.0")
        self._git("tag", "--delete", "v2.0" if not state["tag"] else "v1.0")
        shutil.rmtree(self._project / "build", ignore_errors=True)
        shutil.rmtree(self._project / "own.egg-info", ignore_errors=True)
        if state["left"]:
            left = self._project / ("build/lib/own" if state["left"] == 1 else "own.egg-info")
            left.mkdir(parents=True)
            (left / "PKG-INFO").write_text("left by an earlier build\n")
        self._compiler.write_text(f"#!/bin/sh\necho cc {state['compiler']}\n")
        self._compiler.chmod(0o755)
        for name, value in (
            ("CFLAGS", ("", "-O2", "-O3")[state["cflags"]]),
            ("CMAKE_ARGS", ("", "-DX")[state["cmake"]]),
        ):
            self._environ.pop(name, None)
            if value:
                self._environ[name] = value
        self._serve()

    def asked(self, tool: str) -> Answer | None:
        """The answer for a start; None where it cannot be resolved or built."""
        facts, request = self._facts(tool), self._request(tool)
        try:
            return ask(request, LockCache(self._cache, None, 0.0), self._environ, facts)
        except StripefsError:
            return None

    def installed(self, tool: str) -> str | None:
        """The digest of the tree that the command makes, None where it fails."""
        shutil.rmtree(self.target, ignore_errors=True)
        command = self._request(tool).command
        done = subprocess.run(command, cwd=self._folder, env=self._environ, capture_output=True, text=True)
        return _digest(self.target) if done.returncode == 0 else None

    @functools.cache  # noqa: B019  one job a check
    def _facts(self, tool: str) -> Facts:
        return ask(self._request(tool, "alpha==1.0"), NoIndex(), self._environ).facts

    def _request(self, tool: str, *asked: str) -> Request:
        options = ["--index-url", self._index, "--target", str(self.target), *(asked or ("-r", "requirements.txt"))]
        uv = [UV, "--quiet", "pip", "install", "--python", sys.executable, *options]
        command = [sys.executable, "-m", "pip", "--quiet", "install", *options] if tool == "pip" else uv
        return Request([Target(str(self.target), 0, 0)], command, str(self._folder))

    def _make(self) -> None:
        """Make the files that never change."""
        (self._project / "own").mkdir(parents=True)
        (self._folder / "shared").mkdir()
        (self._project / "own/shared.py").symlink_to("../../shared/shared.py")
        backend = textwrap.dedent(_BACKEND.format(name="own", version=_DESCRIBED))
        (self._project / "backend.py").write_text(backend)
        (self._project / "pyproject.toml").write_text(_PROJECT.format(name="own"))
        self._git("init", "--quiet")
        self._git("-c", "user.name=x", "-c", "user.email=x@x", "commit", "--quiet", "--allow-empty", "--message", "x")
        gamma = textwrap.dedent(_BACKEND.format(name="gamma", version='version = "1.0"'))
        files = {"pyproject.toml": _PROJECT.format(name="gamma"), "backend.py": gamma, "gamma/__init__.py": "z = 1\n"}
        sdist(self._packages, "gamma", files)
        wheel(self._packages, "beta", {"beta/__init__.py": ""}, requires=["alpha"])
        for version in ("1.0", "1.1", "1.2"):
            wheel(self._packages, "alpha", {"alpha/__init__.py": f"v = '{version}'\n"}, version=version)
        wheel(self._packages / "other", "alpha", {"alpha/__init__.py": "v = 'rebuilt'\n"}, version="1.1")

    def _serve(self) -> None:
        """Put the files of the index, whose pages name them with their digests, in their places."""
        served = self._packages.parent / "served"
        shutil.rmtree(served, ignore_errors=True)
        chosen: dict[str, list[Path]] = {}
        for path in sorted(self._packages.glob("*-*")):
            if "-1.2-" in path.name and not self.state["newest"]:
                continue
            other = self._packages / "other" / path.name
            name = path.name.partition("-")[0]
            chosen.setdefault(name, []).append(other if self.state["bytes"] and other.exists() else path)
        for name, paths in chosen.items():
            (served / name).mkdir(parents=True)
            for path in paths:
                shutil.copy(path, served / name / path.name)

    def _git(self, *words: str) -> None:
        subprocess.run(["git", *words], cwd=self._project, env=self._environ, capture_output=True, check=False)


def _digest(folder: Path) -> str:
    """Of names and contents; without what installers note of when and from where, and bytecode."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        noted = path.name.startswith("uv_") or path.name in ("RECORD", "INSTALLER", "REQUESTED", ".lock")
        if path.is_file() and not noted and "__pycache__" not in path.parts:
            found.update(f"{path.relative_to(folder)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()
