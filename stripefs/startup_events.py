"""Events of a job's start: a stage begins, ends, or something happens at one moment. One JSON object a line.

Writers are the job itself, `imagefs`, its snapshotter and `stripefs`; docs/startup-events.md documents the fields.
This file imports nothing but the standard library, runs on Python 3.9 and later, and is complete by itself, so that a
container whose image has none of this project can import it, or run it, from a bind mount.

A writer never blocks its caller and never raises into it: an event is stamped, numbered and queued, and a thread writes
it to a file of this process alone in a local spool folder. Events that find the queue full, the disk full or the folder
gone are counted; the gap in their numbers and the count in a later `dropped` event show the loss. Files rotate:
the first file of a process is kept, since it tells how the start began, and of the later ones the newest.

A process that has forked gets a file and numbers of its own in the child. Thread-safe.
"""

from __future__ import annotations

import atexit
import collections
import functools
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

__all__ = ["KINDS", "STAGES", "VERSION", "Identity", "Span", "Writer", "default_writer", "identity"]

VERSION = 1

STAGES = (
    "queue",  # from submission until the scheduler has found nodes
    "image",  # the container image: pull, attach, the blocks that the start touches
    "container",  # from the request to run until the command is executed
    "dependencies",  # packages that are installed, or mounted, at run time
    "imports",  # the interpreter and the modules that it loads
    "model",  # the model is built, its parameters still empty
    "checkpoint",  # parameters and optimiser state are read
    "rendezvous",  # ranks find one another and connect
    "compile",  # kernels and graphs are compiled
    "first_batch",  # the data loader's first batch
    "first_step",  # the first optimiser step
    "setup",  # everything before the first step, as a job sees it by itself: contains others
    "ready",  # the start is over
)
"""The stages that reports know, in the order in which most jobs go through them."""

KINDS = ("work", "wait")

ENV_FOLDER, ENV_JOB, ENV_RUN = "BOOTSEER_EVENTS", "BOOTSEER_JOB", "BOOTSEER_RUN"
ENV_ATTEMPT, ENV_NODE, ENV_RANK = "BOOTSEER_ATTEMPT", "BOOTSEER_NODE", "BOOTSEER_RANK"

_RANKS = (ENV_RANK, "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "JOB_COMPLETION_INDEX")
_ATTEMPTS = (ENV_ATTEMPT, "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
_JOBS = (ENV_JOB, "SLURM_JOB_NAME", "JOB_NAME")
_RUNS = (ENV_RUN, "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")

FILE_BYTES = 8 << 20
FILES = 4
"""A process writes files of so many bytes and keeps so many."""

QUEUE = 10_000
"""Events that may wait for the disk."""

LINE_BYTES = 4000
"""A longer line loses its facts, and then the end of its name: appends of up to a page are not torn."""

_NAME = 512

_FunctionT = TypeVar("_FunctionT", bound=Callable[..., Any])


class Identity(NamedTuple):
    """The start that events belong to. rank is None for a process that has none, such as a node's service."""

    job: str = ""
    run: str = ""
    attempt: int = 0
    node: str = ""
    rank: int | None = None
    trace: str = ""
    parent: str = ""


def identity(environ: Mapping[str, str] | None = None) -> Identity:
    """The identity that BOOTSEER_* variables give, else those of torchrun, Slurm, MPI and Kubernetes.

    A W3C TRACEPARENT becomes the trace and the parent of spans that have none.
    """
    environ = os.environ if environ is None else environ

    def first(names: tuple[str, ...]) -> str:
        return next((environ[name] for name in names if environ.get(name)), "")

    found = re.fullmatch(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}.*", environ.get("TRACEPARENT", ""))
    trace, parent = found.groups() if found else ("", "")
    rank, attempt = first(_RANKS), first(_ATTEMPTS)
    return Identity(
        job=first(_JOBS),
        run=first(_RUNS) or trace,
        attempt=int(attempt) if attempt.isdecimal() else 0,
        node=environ.get(ENV_NODE) or os.uname().nodename,
        rank=int(rank) if rank.isdecimal() else None,
        trace=trace,
        parent=parent,
    )


class Span:
    """A stage, or a part of one, that has begun. Ends once, also as a context manager; an exception is noted."""

    def __init__(self, writer: Writer, stage: str, name: str, kind: str, parent: str) -> None:
        self._writer, self._stage, self._name, self._kind = writer, stage, name, kind
        self.parent = parent
        self.id = secrets.token_hex(8)
        self._ended = False

    def end(self, **facts: Any) -> None:
        """facts: plain values, such as bytes=, hits=, misses=, source=, cause=."""
        if not self._ended:
            self._ended = True
            self._writer.emit("end", self._stage, self._name, span=self.id, kind=self._kind, facts=facts)

    def __enter__(self) -> Span:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        self.end(**({} if kind is None else {"error": kind.__name__}))


class Writer:
    """Writes the events of one process. folder: the spool, made when it is missing; "" writes nothing.

    source: the program that writes, such as "stripefs" or "job".
    """

    def __init__(
        self, folder: str, who: Identity, source: str, *, file_bytes: int = FILE_BYTES, files: int = FILES
    ) -> None:
        self.folder, self.identity, self.source = folder, who, source
        self._file_bytes, self._files = file_bytes, files
        self._lock = threading.Lock()
        self._reset()
        if folder:
            os.register_at_fork(after_in_child=self._reset)
            atexit.register(self.close)

    def _reset(self) -> None:
        """Begin a file and numbers of this process's own."""
        self._lock = threading.Lock()
        self._queue: collections.deque[bytes] = collections.deque()
        self._wake = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._idle = threading.Event()
        self._idle.set()
        self._seq = self._dropped = 0
        self._stem = ""

    def instant(self, stage: str, name: str = "", *, kind: str = "work", **facts: Any) -> None:
        self.emit("instant", stage, name, kind=kind, facts=facts)

    def begin(self, stage: str, name: str = "", *, kind: str = "work", parent: str = "", **facts: Any) -> Span:
        span = Span(self, stage, name, kind, parent or self.identity.parent)
        self.emit("begin", stage, name, span=span.id, parent=span.parent, kind=kind, facts=facts)
        return span

    def stage(self, stage: str, name: str = "", *, kind: str = "work") -> Callable[[_FunctionT], _FunctionT]:
        """A decorator: each call of the function is a span."""

        def decorate(function: _FunctionT) -> _FunctionT:
            @functools.wraps(function)
            def timed(*arguments: Any, **options: Any) -> Any:
                with self.begin(stage, name or function.__qualname__, kind=kind):
                    return function(*arguments, **options)

            return timed  # type: ignore[return-value]

        return decorate

    def emit(
        self,
        event: str,
        stage: str,
        name: str = "",
        *,
        span: str = "",
        parent: str = "",
        kind: str = "work",
        facts: Mapping[str, Any] | None = None,
        wall_ns: int | None = None,
        mono_ns: int | None = None,
        who: Identity | None = None,
    ) -> None:
        """Queue one event: begin, end or instant. Never raises and never waits.

        wall_ns, mono_ns: when it happened, where that is not now. who: in place of this writer's own identity.
        """
        if not self.folder:
            return
        wall_ns = time.time_ns() if wall_ns is None else wall_ns
        mono_ns = time.monotonic_ns() if mono_ns is None else mono_ns
        who = who or self.identity
        with self._lock:
            if len(self._queue) >= QUEUE:
                self._seq += 1
                self._dropped += 1
                return
            if self._dropped:
                self._append(who, wall_ns, mono_ns, "instant", "dropped", "", "", "", "wait", {"events": self._dropped})
                self._dropped = 0
            self._append(who, wall_ns, mono_ns, event, stage, name, span, parent, kind, facts or {})
            if self._thread is None:
                self._stem = f"{_safe(who.node) or 'node'}.{os.getpid()}.{secrets.token_hex(4)}"
                self._thread = threading.Thread(target=self._write, name="startup-events", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # no thread can be had, or the interpreter ends: the queue is all there is
                    self._thread = None
        self._wake.release()

    def _append(
        self, who: Identity, wall: int, mono: int, event: str, stage: str, name: str, span: str, parent: str, kind: str,
        facts: Mapping[str, Any],
    ) -> None:  # fmt: skip
        fields: dict[str, Any] = {
            "v": VERSION, "wall_ns": wall, "mono_ns": mono, "event": event, "stage": stage, "name": name[:_NAME],
            "job": who.job, "run": who.run, "attempt": who.attempt, "node": who.node, "rank": who.rank,
            "boot": _boot(), "pid": os.getpid(), "source": self.source, "seq": self._seq, "span": span,
            "parent": parent, "kind": kind, "trace": who.trace,
        }  # fmt: skip
        kept = {key: value for key, value in fields.items() if value not in ("", None)}
        line = _line({**kept, "facts": dict(facts)} if facts else kept)
        if len(line) > LINE_BYTES:
            line = _line({**kept, "name": name[:_NAME].encode("ascii", "replace").decode(), "cut": True})
        self._seq += 1
        self._idle.clear()
        self._queue.append(line)

    def _write(self) -> None:
        """The thread: append what is queued. An error drops the line and counts it."""
        number, size, descriptor = 0, 0, -1
        queue, wake, idle = self._queue, self._wake, self._idle
        while True:
            if not queue:
                idle.set()
            wake.acquire()
            while queue:
                line = queue.popleft()
                try:
                    if descriptor < 0 or size + len(line) > self._file_bytes:
                        if descriptor >= 0:
                            os.close(descriptor)
                            descriptor, number, size = -1, number + 1, 0
                            self._forget(number - self._files + 1)
                        os.makedirs(self.folder, exist_ok=True)
                        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                        descriptor = os.open(self._path(number), flags, 0o644)
                    size += os.write(descriptor, line)
                except OSError:
                    with self._lock:
                        self._dropped += 1

    def _path(self, number: int) -> str:
        return os.path.join(self.folder, f"{self._stem}.{number}.jsonl")

    def _forget(self, number: int) -> None:
        if number > 0:
            os.unlink(self._path(number))

    def close(self, timeout: float = 1.0) -> bool:
        """Wait until everything queued is written, at most so many seconds; tells whether it was."""
        return not self.folder or self._thread is None or self._idle.wait(timeout)


@functools.cache
def default_writer(source: str = "job") -> Writer:
    """The writer of this process for the folder that BOOTSEER_EVENTS names; one that writes nothing without it."""
    return Writer(os.environ.get(ENV_FOLDER, ""), identity(), source)


@functools.cache
def _boot() -> str:
    """Names the boot whose monotonic clock `mono_ns` is; "" where the kernel does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().replace("-", "")[:16].strip()
    except OSError:
        return ""


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", name)[:64]


def _line(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), default=str).encode("ascii") + b"\n"
