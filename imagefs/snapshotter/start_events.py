"""The start-up events of a snapshotter: a span for each Prepare, and one for each image that the daemon mounts.

They belong to the start that labels of the snapshot name, `containerd.io/snapshot/bootseer.job`, `.run`, `.attempt`
and `.rank`, which containerd takes from labels or annotations of the container; without them to the node alone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from imagefs.daemon.start_events import identity_of
from stripefs.startup_events import ProcessIdentity, Writer, identity

__all__ = ["LABEL", "NodeEvents", "Part", "start_of"]

LABEL = "containerd.io/snapshot/bootseer."

_NUMBERS = ("attempt", "rank")


def start_of(labels: Mapping[str, str]) -> dict[str, Any]:
    """The start that these labels name, as a request to the daemon has it; {} where they name none."""
    found: dict[str, Any] = {}
    for name in ("job", "run", *_NUMBERS):
        if text := labels.get(LABEL + name):
            found[name] = int(text) if name in _NUMBERS and text.isdecimal() and len(text) < 10 else text
    return identity_of(found)


class Part(NamedTuple):
    """A span that has begun, "" where none is written, and the facts of its end."""

    span: str
    facts: dict[str, Any]


class NodeEvents:
    """The events of one snapshotter in this folder; "" writes none. For any thread."""

    def __init__(self, folder: str = "") -> None:
        self._node = identity({}).node if folder else ""
        self._writer = Writer(folder, ProcessIdentity(node=self._node), "snapshotter")

    @contextlib.contextmanager
    def part(self, name: str, labels: Mapping[str, str], **facts: Any) -> Iterator[Part]:
        """A span of stage `image`, of the start that the labels name."""
        who = ProcessIdentity(**start_of(labels))._replace(node=self._node)
        part = Part(os.urandom(8).hex() if self._node else "", dict(facts))
        self._writer.emit("begin", "image", name, span=part.span, facts=facts, who=who)
        try:
            yield part
        except BaseException as error:
            part.facts["error"] = type(error).__name__
            raise
        finally:
            self._writer.emit("end", "image", name, span=part.span, facts=part.facts, who=who)

    def close(self) -> None:
        """Wait a moment until all is written."""
        self._writer.close()
