"""The prose of code: no sentence of a docstring or comment begins with a clause in place of a subject."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.checkout import CHECKOUT
from tests.support.prose import headless, sentences, texts

_PLACES = ("stripefs", "imagefs", "bench", "scripts", "tests", "deploy", "requirements", "pyproject.toml", "mkdocs.yml")
_MAY_BE = re.compile(r"[Ww]h(?:at|o|ether|ich|y)|[Hh]ow|[Nn]obody")


def _files(place: str) -> Iterator[Path]:
    folder = CHECKOUT / place
    for path in sorted(folder.rglob("*")) if folder.is_dir() else [folder]:
        if path.is_file() and path.suffix not in (".pyc", ".json", ".md"):
            yield path


@pytest.mark.parametrize("place", _PLACES)
def test_sentences_have_subjects(place: str) -> None:
    found, looked_at = [], 0
    for path in _files(place):
        try:
            content = path.read_text()
        except UnicodeDecodeError:
            continue  # no text
        looked_at += 1
        if not _MAY_BE.search(content):
            continue
        for line, text in texts(path):
            found += [f"{path.relative_to(CHECKOUT)}:{line}: {one}" for one in sentences(text) if headless(one)]
    assert looked_at
    assert found == []


def test_clauses_are_found(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text('''\
"""Why it fails. It ends:

- What it has stays.
"""
# Plain, over
# two lines. Nobody reads it.
SIZE = 5  # whose bytes are kept
"""Of what was read."""
NAME = "What is no docstring"
KIND = 1  # which is the default


def call() -> None:
    """Answers what it has. Whose is it?"""
''')
    read = list(texts(file))
    assert [line for line, _ in read] == [1, 5, 7, 8, 10, 14]
    assert [one for _, text in read for one in sentences(text) if headless(one)] == [
        "Why it fails.", "What it has stays.", "Nobody reads it.", "whose bytes are kept", "Of what was read.",
    ]  # fmt: skip
    other = tmp_path / "program"
    other.write_text("#!/bin/sh\n# How it\n# runs.\nrun # what ends\n")
    assert list(texts(other)) == [(2, "How it\nruns."), (4, "what ends")]
