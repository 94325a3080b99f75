"""Turns data of other tools into events of docs/startup-events.md: `read(kind, files, given)`.

The modules are pure: text in, events out. None of these tools tells a monotonic clock, so
imported events have `wall_ns` alone, and no `boot`, `pid` or `seq`; durations are made of the wall clock. No value is
guessed: a row that lacks what its event needs is rejected with its line number, and a row that says nothing about
a start is counted as passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from imagefs.errors import FormatError
from imagefs.startup.importers import kubernetes, otlp, table, text
from imagefs.startup.importers.events import Given, Imported, Rejected

__all__ = ["KINDS", "Given", "Imported", "Rejected", "read"]

KINDS: dict[str, Callable[[str, Imported], None]] = {
    "containerd": text.read_containerd,
    "csv": table.read,
    "kubernetes": kubernetes.read,
    "otlp": otlp.read,
    "slurm": text.read_slurm,
    "systemd": text.read_systemd,
}
"""The function that reads each kind: a file's text, and where its events go."""


def read(kind: str, files: Iterable[Path], given: Given) -> Imported:
    """The events of all files, by time. Raises FormatError for a file that cannot be read or is of another kind."""
    imported = Imported(kind, given)
    for file in files:
        imported.file = file
        try:
            content = file.read_bytes().decode("utf-8-sig", "replace")
        except OSError as error:
            raise FormatError(f"{file} cannot be read: {error.strerror}") from error
        KINDS[kind](content, imported)
    imported.events.sort(key=lambda event: event["wall_ns"])
    return imported
