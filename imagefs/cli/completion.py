"""`imagefs completion SHELL`."""

from __future__ import annotations

from imagefs.cli.main import PROGRAM
from stripefs.cli.completion import completion

__all__ = ["command"]

command = completion(PROGRAM)
