"""The click group behind `stripefs` (see `stripefs.cli.click_group`), and `stripefs completion`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from stripefs.cli.click_group import completion, group, run_group
from stripefs.cli.main import COMMANDS, PROGRAM
from stripefs.config import nearest

__all__ = ["app", "completion_command", "main"]


def _hint(word: str) -> str:
    is_source = "://" in word or os.path.isdir(word)
    return f"did you mean stripefs mount {word} …?" if is_source else nearest(word, COMMANDS)


app = group(PROGRAM, _hint)
completion_command = completion(PROGRAM)


def main(arguments: Sequence[str]) -> int:
    """Run `stripefs` with these arguments; the exit code, after any error has been told on standard error."""
    return run_group(app, PROGRAM, arguments)
