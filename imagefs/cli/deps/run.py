"""`imagefs deps run --target DIR -- COMMAND`."""

from __future__ import annotations

from imagefs.cli.deps.common import installing

__all__ = ["command"]

_PAGE = """\
Have in DIR what COMMAND installs there: mounted where the store has it, else installed and published.

Ends with the status of COMMAND, or with 0 where it had not to run. One line says which it was, and why.
"""

command = installing("run", _PAGE, "-- COMMAND…")
