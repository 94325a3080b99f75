"""What is written down of a host's images before it is acted on, so that the worker that comes next knows it."""

from __future__ import annotations

import json
from typing import Any

from imagefs.daemon.state import Attachment, State
from stripefs.fuse.state_memory import MemoryJournal

__all__ = ["Ledger"]


class Ledger:
    """The `state` that the journal tells, which the supervisor keeps."""

    def __init__(self, journal: MemoryJournal) -> None:
        self._journal = journal
        self.state = State.replayed(journal.load())

    def record(self, record: dict[str, Any]) -> None:
        """Make a change (`imagefs.daemon.state`), and have it in the journal before."""
        self._journal.append(json.dumps(record).encode())
        self.state.apply(record)
        if self._journal.full():
            self._journal.replace(json.dumps(one).encode() for one in self.state.records())

    def change(self, attachment: Attachment, **values: Any) -> None:
        """Let these attributes have other values."""
        self.record({"change": {"id": attachment.id, **values}})
