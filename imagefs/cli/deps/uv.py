"""`imagefs deps uv --target DIR -r FILE`."""

from __future__ import annotations

from imagefs.cli.deps.common import installing

__all__ = ["command"]

_PAGE = """\
As `imagefs deps run` with `uv pip install --target DIR ARGUMENTS…`.

What is no option below goes to uv, -r FILE for example.
"""

command = installing("uv", _PAGE)
