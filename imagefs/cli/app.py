"""The click group behind `imagefs` (see `stripefs.cli.click_group`), and its completion script."""

from __future__ import annotations

from collections.abc import Sequence

from imagefs.cli.main import COMMANDS, PROGRAM
from imagefs.config import nearest
from stripefs.cli.click_group import completion, group, run_group

__all__ = ["app", "completion_command", "main"]


def _hint(word: str) -> str:
    return f"did you mean imagefs mount {word} …?" if "#" in word else nearest(word, COMMANDS)


app = group(PROGRAM, _hint)


def main(arguments: Sequence[str]) -> int:
    """Run `imagefs` with these arguments; the exit code, after any error has been told on standard error."""
    return run_group(app, PROGRAM, arguments)


completion_command = completion(PROGRAM)
