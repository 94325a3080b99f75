"""Requests with real files, and what is asked for their keys."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from imagefs.deps.digest import digest_of_tree
from imagefs.deps.key import Facts, Key, Refusal, Request, Target
from imagefs.deps.keybuilder import Answer, ask
from imagefs.deps.local import BuildOrder, Wheel
from imagefs.deps.lock import Lock
from imagefs.deps.resolver import LockCache, ResolvedLock

PIP = [sys.executable, "-m", "pip", "install"]
UV = [str(Path(sys.executable).with_name("uv")), "pip", "install"]


def make(folder: Path) -> Path:
    (folder / "src").mkdir(parents=True)
    (folder / "src/pyproject.toml").write_text("[project]\nname = 'own'\nversion = '1'\n")
    (folder / "src/own.py").write_text("x = 1\n")
    (folder / "requirements.txt").write_text("-r more.txt\nsix==1.16\n./src\n")
    (folder / "more.txt").write_text("numpy==1.26.4\n")
    (folder / "six-1.16-py2.py3-none-any.whl").write_bytes(b"wheel")
    return folder


def environ(job: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    return {**kept, "HOME": str(job.parent / "home"), "XDG_CONFIG_DIRS": str(job / "xdg"), **more}


def request(job: Path, *words: str, **more: Any) -> Request:
    command = words or (*PIP, "--target", "/opt/deps", "-r", "requirements.txt")
    return Request([Target("/opt/deps", 0, 0)], command, str(job))._replace(**more)


class NoIndex(LockCache):
    """A resolver that finds each installation to be of nothing, and notes what it was asked."""

    def __init__(self, lock: Lock | None = None) -> None:
        super().__init__("", None, 0.0)
        self.asked: list[str] = []
        self._lock = lock or Lock.of([])

    def lock(self, name: str, *_more: object) -> ResolvedLock:
        self.asked.append(name)
        return ResolvedLock(self._lock, cached=False)


def built(order: BuildOrder, environ: Mapping[str, str]) -> dict[str, Wheel]:
    """Wheels of the sources as they are."""
    return {source: Wheel("own", "1", digest_of_tree(source), ()) for source in order.sources}


def answer(job: Path, *words: str, variables: dict[str, str] | None = None, **more: Any) -> Answer:
    return ask(request(job, *words, **more), NoIndex(), environ(job, **(variables or {})), known(words), built)


@functools.cache
def facts_of(tool: str) -> Facts:
    """The facts of this host, which one test after the other need not ask for."""
    return ask(request(Path("/"), *{"uv": UV, "pip": PIP}[tool], "six==1"), NoIndex(), os.environ).facts


def known(words: Sequence[str]) -> Facts:
    return facts_of("uv" if UV[0] in words else "pip")


def key(job: Path, *words: str, variables: dict[str, str] | None = None, **more: Any) -> Key:
    found = answer(job, *words, variables=variables, **more).found
    assert isinstance(found, Key), found
    return found


def open_ends(job: Path, *words: str, variables: dict[str, str] | None = None, **more: Any) -> list[str]:
    found = answer(job, *words, variables=variables, **more).found
    return [str(one) for one in found.open_ends] if isinstance(found, Refusal) else []
