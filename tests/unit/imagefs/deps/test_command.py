"""Calls of installers in a command, and their requirements."""

from __future__ import annotations

import shlex

import pytest

from imagefs.deps.command import Call, calls


def call_in(text: str) -> Call:
    (found,) = calls(shlex.split(text))
    return found


@pytest.mark.parametrize(
    ("text", "tool", "program"),
    [
        ("pip3.11 --quiet install six", "pip", "pip3.11"),
        ("/opt/venv/bin/pip --cache-dir /tmp/c install six", "pip", "/opt/venv/bin/pip"),
        ("python3 -I -X utf8 -W ignore -m pip install six", "pip", "python3 -I -X utf8 -W ignore -m pip"),
        ("python3 -mpip install six", "pip", "python3 -mpip"),
        ("python3 -I /opt/bin/pip3.11 install six", "pip", "python3 -I /opt/bin/pip3.11"),
        ("env PIP_NO_DEPS=1 nice -n 5 pip install six", "pip", "pip"),
        ("uv --no-cache pip install six", "uv", "uv"),
        ("python3 -m uv pip install six", "uv", "python3 -m uv"),
    ],
)
def test_installers(text: str, tool: str, program: str) -> None:
    found = call_in(text)
    assert (found.tool, list(found.program)) == (tool, program.split())
    assert found.requirements == [("six", False)]


@pytest.mark.parametrize(
    "text",
    [
        "pip download six",
        "pip uninstall install",
        "python3 install.py pip install",
        "python3 -c 'import pip' pip install",
        "python3 -m venv pip",
        "uv pip compile install",
        "uv run pip",
        "",
    ],
)
def test_other_commands(text: str) -> None:
    assert list(calls(shlex.split(text))) == []


def test_options_and_their_values() -> None:
    found = call_in(
        "pip install -r a.txt -rb.txt --requirement=c.txt -c d.txt -e ./src -U --no-deps -qqr e.txt --target /opt/deps "
        "--index-url https://x -i https://y --extra-index-url=https://z -f wheels --no-binary :all: six -- -odd --pre"
    )
    assert found.values == {
        "requirement": ["a.txt", "b.txt", "c.txt", "e.txt"],
        "constraint": ["d.txt"],
        "index-url": ["https://x", "https://y"],
        "extra-index-url": ["https://z"],
        "find-links": ["wheels"],
    }
    assert found.requirements == [("six", False), ("-odd", False), ("--pre", False), ("./src", True)]
    assert found.switches == {"-U", "--no-deps", "--target", "--no-binary"}
    assert call_in("pip install --new-option value").requirements == [("value", False)]  # unknown, so it has none


def test_options_of_uv() -> None:
    found = call_in(
        "uv pip install --requirements a.txt --overrides o.txt -b b.txt -p 3.12 --torch-backend auto "
        "--prerelease allow --default-index https://d --index https://i --exclude-newer 2026-01-01 --pre six"
    )
    assert found.values == {
        "requirement": ["a.txt"],
        "override": ["o.txt"],
        "constraint": ["b.txt"],
        "torch-backend": ["auto"],
        "prerelease": ["allow"],
        "default-index": ["https://d"],
        "index": ["https://i"],
    }
    assert found.requirements == [("six", False)]
    assert "--pre" in found.switches
