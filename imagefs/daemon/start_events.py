"""The daemon's observations of a start, as start-up events: documents, first byte, hot device, on demand, stalls.

The daemon writes them where it has a folder of its own for events. Else it keeps them, `MOST` of a start, for the
client that attached the image, which gets them in answers to `ready` and `detach` and writes them itself. A request
names the start that its events belong to, and never a folder: a client can have nothing written in a place of its
choice by a daemon of another user.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from imagefs.daemon.state import Attachment
from stripefs.startup_events import ProcessIdentity, Writer

__all__ = ["MOST", "Moment", "StartEvents", "identity_of"]

MOST = 200
"""Events that are kept for a client: stalls of minutes."""

_LONGEST = 256
"""Characters of a name of a job, run or node that a request may give."""


class Moment:
    """A time, by the clocks of the schema. ago: seconds since it was."""

    def __init__(self, ago: float = 0.0) -> None:
        before = int(ago * 1e9)
        self.wall_ns, self.mono_ns = time.time_ns() - before, time.monotonic_ns() - before


def identity_of(asked: object) -> dict[str, Any]:
    """The start that a request names, as plain values that may be kept; {} where it names none that is readable."""
    if not isinstance(asked, Mapping) or not asked:
        return {}
    found: dict[str, Any] = {}
    for name in ProcessIdentity._fields:
        value = asked.get(name)
        if name in ("attempt", "rank"):
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31:
                found[name] = value
        elif isinstance(value, str) and value:
            found[name] = value[:_LONGEST]
    return found


class StartEvents:
    """The events of one attachment. writer: of the daemon's own folder, None where it has none."""

    def __init__(self, attachment: Attachment, writer: Writer | None) -> None:
        self._stage = "dependencies" if attachment.snapshot else "image"
        self._who = attachment.events
        self._writer = writer
        self._kept: list[dict[str, Any]] = []
        self._dropped = 0
        self.on = writer is not None or bool(self._who)
        """True where somebody wants them."""

    def instant(self, name: str, *, stage: str = "", **facts: Any) -> None:
        """stage: in place of that of the image."""
        self._put("instant", name, Moment(), stage=stage or self._stage, facts=facts)

    def span(
        self,
        name: str,
        begun: Moment,
        facts: Mapping[str, Any] | None = None,
        *,
        ended: Moment | None = None,
        kind: str = "work",
        parent: str = "",
    ) -> None:
        """A span that began then and ended then, or ends now."""
        span = os.urandom(8).hex()
        known = facts or {}
        self._put("begin", name, begun, span=span, parent=parent, kind=kind, facts=known if kind == "wait" else {})
        self._put("end", name, ended or Moment(), span=span, kind=kind, facts=known)

    def take_events(self) -> dict[str, Any]:
        """Hand the kept events and the start that they belong to over to the client. {} for nothing."""
        kept, self._kept = self._kept, []
        if not kept:
            return {}
        if self._dropped:
            self._dropped, dropped = 0, self._dropped
            now = Moment()
            told = {"event": "instant", "stage": "dropped", "kind": "wait", "facts": {"events": dropped}}
            kept.append({**told, "name": "", "wall_ns": now.wall_ns, "mono_ns": now.mono_ns})
        return {"who": self._who, "events": kept}

    def _put(self, event: str, name: str, at: Moment, **more: Any) -> None:
        more = {"stage": self._stage, **more, "wall_ns": at.wall_ns, "mono_ns": at.mono_ns}
        if self._writer is not None:
            who = ProcessIdentity(**self._who) if self._who else None
            who = who._replace(node=self._writer.identity.node) if who is not None and not who.node else who
            self._writer.emit(event, name=name, who=who, **more)
        elif self._who and len(self._kept) < MOST:
            self._kept.append({"event": event, "name": name, **more})
        elif self._who:
            self._dropped += 1
