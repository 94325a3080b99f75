"""`imagefs deps pip --target DIR -r FILE`."""

from __future__ import annotations

from imagefs.cli.deps.common import installing

__all__ = ["command"]

_PAGE = """\
As `imagefs deps run` with `python3 -m pip install --target DIR ARGUMENTS…`.

What is no option below goes to pip, -r FILE for example.
"""

command = installing("pip", _PAGE)
