"""`imagefs deps venv --target DIR -r FILE`."""

from __future__ import annotations

from imagefs.cli.deps.common import installing

__all__ = ["command"]

_PAGE = """\
Have a virtual environment in DIR, with what `pip install ARGUMENTS…` installs into it, and without pip.

What is no option below goes to pip, -r FILE for example.
"""

command = installing("venv", _PAGE)
