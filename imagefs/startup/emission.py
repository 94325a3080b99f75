"""The start-up events that a command of imagefs writes about itself, where BOOTSEER_EVENTS names a folder.

Without the variable nothing is loaded, written or waited for. `imagefs run` forks, and its main thread then waits for
signals itself, so no other thread may run before: its writer holds the events, with the time at which they happened,
until the command of the container is executed (`EventRecorder.executed`) or `imagefs run` ends. A command that is
killed before that leaves no events.

The daemon observes parts of a start that no command sees. It either has a folder of its own, or answers them to the
command that attached the image, which writes them (`EventRecorder.add`, docs/startup-events.md).
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterator, Mapping

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from typing import Any

    from stripefs.startup_events import Span, Writer

__all__ = ["EventRecorder", "NoSpan", "environment", "events", "unnamed"]

_FOLDER = "BOOTSEER_EVENTS"
"""Names the spool folder."""

_IDENTITY = ("BOOTSEER_JOB", "BOOTSEER_RUN", "BOOTSEER_ATTEMPT", "BOOTSEER_NODE", "BOOTSEER_RANK", "TRACEPARENT")
"""The variables that a container gets: who it is. The folder is another one there."""

_FIELDS = ("name", "span", "parent", "kind", "facts", "wall_ns", "mono_ns")


@functools.cache
def events() -> EventRecorder:
    """The recorder of this process."""
    if not os.environ.get(_FOLDER):
        return EventRecorder(None)
    from stripefs.startup_events import default_writer

    return EventRecorder(default_writer("imagefs"))


def environment(environ: Mapping[str, str]) -> list[str]:
    """NAME=VALUE for a container that belongs to the same start."""
    found = {name: environ[name] for name in _IDENTITY if environ.get(name)}
    if environ.get(_FOLDER):
        from stripefs.startup_events import identity

        who = identity(environ)  # by the variables of schedulers, too, which the container does not get
        own = (who.job, who.run, str(who.attempt), who.node, "" if who.rank is None else str(who.rank))
        found = {name: value for name, value in zip(_IDENTITY, own, strict=False) if value} | found
    return [f"{name}={value}" for name, value in found.items()]


def unnamed(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables for a program that is no part of a start."""
    return {name: value for name, value in environ.items() if name not in (_FOLDER, *_IDENTITY)}


class NoSpan(contextlib.AbstractContextManager["NoSpan"]):
    """A span of a command that writes no events."""

    id = ""

    def end(self, **_facts: Any) -> None:
        return

    def __exit__(self, *_error: object) -> None:
        return


class EventRecorder:
    """The events of one command. writer: None for one that writes none; then every method does nothing.

    on: whether anything is written.
    """

    def __init__(self, writer: Writer | None) -> None:
        self.on = writer is not None
        self._writer = writer
        self._call: Span | NoSpan = NoSpan()
        self._parent = writer.identity.parent if writer is not None else ""

    def begin(self, stage: str, name: str = "", *, kind: str = "work", ago: float = 0.0, **facts: Any) -> Span | NoSpan:
        """ago: seconds since it has begun."""
        if self._writer is None:
            return NoSpan()
        from stripefs.startup_events import Span

        span, before = Span(self._writer, stage, name, kind, self._parent), int(ago * 1e9)
        self._writer.emit(
            "begin", stage, name, span=span.id, parent=span.parent, kind=kind, facts=facts,
            wall_ns=time.time_ns() - before, mono_ns=time.monotonic_ns() - before,
        )  # fmt: skip
        return span

    def instant(self, stage: str, name: str = "", **facts: Any) -> None:
        if self._writer is not None:
            self._writer.instant(stage, name, **facts)

    def add(self, observed: Any) -> None:
        """Add events that the daemon has observed and answered, of the start that was named when the image was
        attached. Those of another version that cannot be read are left out."""
        if self._writer is None:
            return
        with contextlib.suppress(TypeError, ValueError, KeyError, AttributeError):
            own = self._writer.identity
            who = own._replace(
                **{"rank": None, **{name: observed["who"][name] for name in own._fields if name in observed["who"]}}
            )
            for one in observed["events"]:
                told = {name: one[name] for name in _FIELDS if name in one}
                self._writer.emit(str(one["event"]), str(one["stage"]), **told, who=who)

    def identity(self) -> dict[str, Any]:
        """The start, for a request to the daemon, which may have a folder of its own; {} where nothing names it."""
        if self._writer is not None:
            return self._writer.identity._asdict()
        if not any(os.environ.get(name) for name in _IDENTITY):
            return {}
        from stripefs.startup_events import identity

        return identity()._asdict()

    @contextlib.contextmanager
    def called(self) -> Iterator[None]:
        """In the block a container is started and waited for: a span from the start of this process until `executed`.
        Events are held until then."""
        if self._writer is None:
            yield
            return
        self._writer.held = True
        self._call, outer = self.begin("container", "exec", ago=_age()), self._parent
        self._parent = self._call.id
        try:
            yield
        except BaseException as error:
            self._call.end(error=type(error).__name__)
            raise
        finally:
            self._call.end(error="Interrupted")  # unless the command was executed
            self._parent = outer
            self.close()

    @property
    def problem(self) -> str:
        """The reason for which events of this command were lost, "" for none; known when they are closed."""
        return self._writer.problem if self._writer is not None else ""

    def executed(self) -> None:
        """The container's command has been executed: write what is held, and from now on at once."""
        if self._writer is not None:
            self._writer.held = False
            self._call.end()

    def close(self) -> None:
        """Wait a moment until all is written, before this process ends or becomes another program."""
        if self._writer is not None:
            self._writer.close()


def _age() -> float:
    """Seconds since this process was started; 0 where the kernel does not tell."""
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
