"""Answers of resolvers are kept for a while, by a host and for all hosts of a store."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from imagefs.deps.lock import LockedRequirement
from imagefs.deps.resolver import LockCache, Question, ResolvedLock, RunResolver, run_here
from imagefs.errors import SnapshotError
from stripefs.settings import StoreSettings

NAME = "ab" * 32


class Index:
    """An index in which a package has a version, which counts how often it is asked."""

    def __init__(self) -> None:
        self.version = "1.0"
        self.asked = 0

    def run(self, _question: Question, _folder: str, _environ: Mapping[str, str], _paths: Sequence[str]) -> str:
        self.asked += 1
        info = {"url": "https://i/six.whl", "archive_info": {"hashes": {"sha256": "ab" * 32}}}
        one = {"download_info": info, "metadata": {"name": "six", "version": self.version}}
        return json.dumps({"install": [one]})


def found(locks: LockCache, name: str = NAME) -> ResolvedLock:
    return locks.lock(name, ("pip", "24.0"), Question(["pip"]), "/", {}, [])


def version(answer: ResolvedLock) -> str:
    (one,) = answer.lock.requirements
    return one.version


@pytest.fixture
def index() -> Index:
    return Index()


def locks(folder: Path, host: str, run: RunResolver, age: float = 3600.0, *, make: bool = True) -> LockCache:
    return LockCache(str(folder / host), StoreSettings(url=str(folder / "store")), age, run, make=make)


def test_an_answer_is_kept_by_the_host_and_by_the_store(tmp_path: Path, index: Index) -> None:
    one, other = locks(tmp_path, "a", index.run), locks(tmp_path, "b", index.run)
    assert not found(one).cached
    index.version = "2.0"
    for host in (one, other):
        again = found(host)
        assert (again.cached, version(again)) == (True, "1.0")
    assert index.asked == 1
    assert version(found(one, "cd" * 32)) == "2.0"


def test_an_answer_of_the_store_may_come_by_another_way(tmp_path: Path, index: Index) -> None:
    found(locks(tmp_path, "a", index.run))
    documents = {NAME: (tmp_path / "store/locks" / NAME).read_bytes()}
    away = StoreSettings(url="http://127.0.0.1:1/store")
    other = LockCache(str(tmp_path / "b"), away, 3600.0, index.run, read=lambda name: documents.get(name, b""))
    assert found(other).cached
    assert not found(other, "cd" * 32).cached


def test_an_old_answer_is_not_believed(tmp_path: Path, index: Index) -> None:
    found(locks(tmp_path, "a", index.run))
    index.version = "2.0"
    assert version(found(locks(tmp_path, "a", index.run, age=0.0))) == "2.0"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"at": "x"}', b'{"at": 9e99, "lock": {}}', None])
def test_an_answer_that_is_damaged_or_of_tomorrow_is_asked_for_anew(
    tmp_path: Path, index: Index, data: bytes | None
) -> None:
    host = LockCache(str(tmp_path), None, 3600.0, index.run)
    found(host)
    (kept,) = (tmp_path / "deps/locks").iterdir()
    tomorrow = json.dumps({**json.loads(kept.read_text()), "at": time.time() + 86400}).encode()
    kept.write_bytes(tomorrow if data is None else data)
    assert not found(host).cached
    assert found(host).cached


def test_hosts_that_ask_at_once_take_the_first_answer(tmp_path: Path, index: Index) -> None:
    other = locks(tmp_path, "b", index.run)

    def run(*arguments: object) -> str:
        found(other)  # is there first
        index.version = "2.0"
        return index.run(*arguments)  # type: ignore[arg-type]

    first = found(locks(tmp_path, "a", run))
    assert (first.cached, version(first)) == (True, "1.0")
    assert index.asked == 2


def test_an_answer_that_is_forgotten(tmp_path: Path, index: Index) -> None:
    host = LockCache(str(tmp_path), None, 3600.0, index.run)
    found(host)
    host.forget(NAME)
    host.forget(NAME)
    assert not found(host).cached


def test_a_store_is_made_only_for_a_start(tmp_path: Path, index: Index) -> None:
    found(locks(tmp_path, "a", index.run, make=False))
    assert not (tmp_path / "store").exists()


def test_a_store_that_is_away_is_done_without(tmp_path: Path, index: Index) -> None:
    away = LockCache(str(tmp_path), StoreSettings(url="http://127.0.0.1:1/store"), 3600.0, index.run)
    assert found(away).lock.requirements == (LockedRequirement("six", "1.0", "wheel", (f"sha256:{'ab' * 32}",)),)


def test_a_program_that_resolves_on_this_host(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd(), os.environ['A'], sys.stdin.read())"
    question = Question([sys.executable, "-c", code], "text")
    assert run_here(question, str(tmp_path), {"A": "b"}, []) == f"{tmp_path} b text\n"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["sh", "-c", "echo 'ERROR: no such thing' >&2; echo '[notice] more' >&2; exit 3"], "ERROR: no such thing"),
        (["sh", "-c", "echo why >&2; exit 3"], "why"),
        (["sh", "-c", "exit 3"], "exit status 3"),
        (["/no/such/program"], "cannot be run"),
    ],
)
def test_a_program_that_does_not_resolve(command: list[str], why: str) -> None:
    with pytest.raises(SnapshotError, match=why.replace("[", r"\[")):
        run_here(Question(command), "/", {"PATH": "/bin:/usr/bin"}, [])
