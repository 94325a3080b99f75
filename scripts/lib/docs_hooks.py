"""Hooks of the documentation's builder: they adapt Markdown that GitHub shows to the site.

Links to files of the checkout outside docs/ become the names of these files, and a missing one is a warning, which the
build treats as an error. In tables GitHub wants `\\|` for a bar inside of code; the builder wants the bar alone.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

_log = logging.getLogger("mkdocs.hooks.docs")
_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>(?:\.\./)+[^)#\s]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The Markdown of one page, before it is converted."""
    folder = Path(page.file.abs_src_path).parent

    def named(link: re.Match[str]) -> str:
        path = Path(os.path.normpath(folder / link["target"]))
        if path.is_relative_to(ROOT / "docs"):
            return link[0]
        if not path.exists():
            _log.warning("%s: %s is not in the checkout", page.file.src_path, link["target"])
        name = f"`{path.relative_to(ROOT)}`"
        return name if link["text"] in (path.name, str(path.relative_to(ROOT))) else f"{link['text']} ({name})"

    lines = _LINK.sub(named, markdown).split("\n")
    return "\n".join(_code_of_table(line) if line.startswith("|") else line for line in lines)


def _code_of_table(line: str) -> str:
    return re.sub(r"`[^`]*`", lambda code: code[0].replace(r"\|", "|"), line)
