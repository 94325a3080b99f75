"""Calls of resolvers, their answers, and the comparison of an installer with them."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from imagefs.deps.command import calls, decisive
from imagefs.deps.lock import Lock, LockedRequirement
from imagefs.deps.resolver import LockedInstall, Question, caching, is_uncached, question_for, read_answer
from imagefs.errors import FormatError
from stripefs.errors import ConfigError

DIGEST = f"sha256:{1:064x}"


def asked(text: str, *, setup: bool = False) -> Question:
    words = shlex.split(text)
    (call,) = calls(words)
    return question_for(words, call, "/p/python", setup=setup)


def test_what_pip_is_asked() -> None:
    found = asked("python3 -m pip install -vv --target /t six")
    assert shlex.join(found.command) == "python3 -m pip install --target /t six --dry-run --quiet --report -"
    found = asked("env A=b pip install six -- -odd")
    assert shlex.join(found.command) == "env A=b pip install six --dry-run --quiet --report - -- -odd"
    found = asked("python3 -m pip --python /t/bin/python install six", setup=True)
    assert found.command[3:] == ["install", "six", "--dry-run", "--quiet", "--report", "-", "--ignore-installed"]


def test_what_uv_is_asked() -> None:
    found = asked(
        "env A=b uv pip install --target /t -q --python 3.12 -r a.txt -c b.txt --index-url=https://i --pre -U -p 3.11 "
        "-f wheels --no-binary :all: 'six>=1' -e ./src"
    )
    assert shlex.join(found.command) == (
        "env A=b uv pip compile --quiet --no-header --format pylock.toml --python /p/python -c b.txt "
        "--index-url=https://i --pre -f wheels --no-binary :all: a.txt -"
    )
    assert found.text == "six>=1\n-e ./src\n"
    assert asked("uv pip sync a.txt --target /t").command[-2:] == ["--no-deps", "a.txt"]


def item(url: str, *, direct: bool = False, **info: Any) -> dict[str, Any]:
    return {
        "download_info": {"url": url, **info},
        "is_direct": direct,
        "metadata": {"name": "Some_Name", "version": "1.0"},
    }


HASHES = {"hashes": {"sha256": f"{1:064x}"}}


@pytest.mark.parametrize(
    ("one", "locked"),
    [
        (item("https://i/a-1.0-py3-none-any.whl", archive_info=HASHES), ("wheel", (DIGEST,), "")),
        (item("https://i/a-1.0.tar.gz", archive_info={"hash": f"sha256={1:064x}"}), ("sdist", (DIGEST,), "")),
        (item("https://i/a-1.0-py3-none-any.whl", archive_info={}), ("wheel", (), "")),
        (item("https://u:p@i/a.zip", direct=True, archive_info=HASHES), ("sdist", (DIGEST,), "https://i/a.zip")),
        (item("file:///job/a-1.0-py3-none-any.whl", direct=True, archive_info=HASHES), ("wheel", (DIGEST,), "")),
        (item("file:///job/src", direct=True, dir_info={}), ("local", (), "")),
        (item("file:///job/src", direct=True, dir_info={"editable": True}), ("editable", (), "/job/src")),
        (
            item("https://h/r", direct=True, vcs_info={"vcs": "git", "commit_id": "0123"}),
            ("vcs", (), "git+https://h/r@0123"),
        ),
    ],
)
def test_what_pip_answers(one: dict[str, Any], locked: tuple[Any, ...]) -> None:
    (found,) = read_answer("pip", json.dumps({"install": [one]}), "pip 24.0").requirements
    assert found == LockedRequirement("some-name", "1.0", *locked)
    held = LockedInstall((), ["pip", "install"], "pip", Lock.of([found]), cached=False)
    assert held.broken(json.dumps({"install": [one]})) == ""
    other = {**one, "metadata": {"name": "some-name", "version": "1.1"}}
    assert held.broken(json.dumps({"install": [one, other]})) == "some-name 1.1 is not what was resolved before"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"install": 7}', '{"install": [{}]}', "[" * 100_000])
def test_what_is_no_answer(text: str) -> None:
    with pytest.raises(FormatError):
        read_answer("pip", text, "pip 24.0")
    held = LockedInstall((), ["pip", "install"], "pip", Lock.of([]), cached=False)
    assert held.broken(text) == "pip did not say what it has installed"
    with pytest.raises(ConfigError):
        read_answer("uv", text, "uv 1")


def test_an_installer_that_said_nothing() -> None:
    assert LockedInstall((), ["pip"], "pip", Lock.of([]), cached=False).broken(None)
    assert not LockedInstall((), ["uv"], "uv", Lock.of([]), cached=False).broken(None)  # which checks digests itself


def test_how_an_installer_is_held() -> None:
    lock = Lock.of([LockedRequirement("six", "1", "wheel", [DIGEST])])
    pip, uv = (LockedInstall((), [tool, "install", "--", "-x"], tool, lock, cached=False) for tool in ("pip", "uv"))
    assert pip.words("/c", "/r") == ["pip", "install", "--constraint", "/c", "--report", "/r", "--", "-x"]
    assert uv.words("/c", "/r") == ["uv", "install", "--constraint", "/c", "--", "-x"]
    assert pip.constraints == "six==1\n"
    assert uv.constraints == f"six==1 --hash={DIGEST}\n"


def test_words_that_decide_nothing() -> None:
    words = "pip -qq install --progress-bar off -v --timeout=3 --target /t --retries 3 --no-color six -- -q"
    assert shlex.join(decisive(shlex.split(words))) == "pip install --target /t six -- -q"


@pytest.mark.parametrize(
    ("text", "cached"),
    [
        (
            "env A=b pip --no-cache-dir install six -- -odd",
            "env A=b pip --no-cache-dir install six --cache-dir /c -- -odd",
        ),
        ("uv pip install -n --no-cache six", "env -u UV_NO_CACHE uv pip install six --cache-dir /c"),
    ],
)
def test_a_cache_in_place_of_none(text: str, cached: str) -> None:
    words = shlex.split(text)
    (call,) = calls(words)
    assert is_uncached(call, {}, {})
    assert shlex.join(caching(words, call, "/c")) == cached
    assert question_for(caching(words, call, "/c"), call, "/p/python", setup=False).command.count("/c") == 1


@pytest.mark.parametrize(
    ("text", "config", "environ", "uncached"),
    [
        ("pip install six", {}, {}, False),
        ("pip install six", {"install.no-cache-dir": "true"}, {}, True),
        ("pip install six", {}, {"PIP_NO_CACHE_DIR": "off"}, True),  # pip turns it off for any value
        ("env PIP_NO_CACHE_DIR=1 pip install six", {}, {}, True),
        ("uv pip install six", {}, {"PIP_NO_CACHE_DIR": "1", "UV_NO_CACHE": "0"}, False),
        ("uv pip install six", {}, {"UV_NO_CACHE": "1"}, True),
    ],
)
def test_who_has_no_cache(text: str, config: dict[str, str], environ: dict[str, str], uncached: bool) -> None:
    (call,) = calls(shlex.split(text))
    assert is_uncached(call, config, environ) == uncached
