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
