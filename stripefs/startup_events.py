"""Events of a job's start: a stage begins, ends, or something happens at one moment. One JSON object a line.

Writers are the job itself, `imagefs`, its snapshotter and `stripefs`; docs/startup-events.md documents the fields.
This file imports nothing but the standard library, runs on Python 3.9 and later, and is complete by itself, so that a
container whose image has none of this project can import it from a bind mount, or run it:
`python startup_events.py mark STAGE [begin|end|instant]`.

A writer never blocks its caller and never raises into it: an event is stamped, numbered and queued, and a thread writes
it to a file of this process alone in a local spool folder. Events that are lost leave a gap in the numbers; `dropped`
events account for each of them, by cause. Of the files of a process the first is kept, since it tells how the start
began, and the newest. The interpreter's end waits for the disk no longer than a second, unless its first event comes
only then: no thread can be started at the end of Python 3.12 and later.

Threads, signal handlers and finalizers may all emit: they share a queue whose `put` is reentrant. A process that has
forked gets a file and numbers of its own in the child; events that it emits right before `os._exit` may be lost.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # built in, unlike signal, which is loaded for nothing else
import _thread
import atexit
import contextlib
import errno
import functools
import itertools
import json
import math
import operator
import os
import queue
import re
import reprlib
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

__all__ = [
    "KINDS",
    "SECTIONS",
    "STAGES",
    "VERSION",
    "ProcessIdentity",
    "Span",
    "Stage",
    "Writer",
    "default_writer",
    "follow_sections",
    "identity",
    "main",
    "span_of",
]

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

SECTIONS = {"step": "first_step", "checkpointing": "checkpoint"}
"""Other names of stages: the sections of NVIDIA's fault tolerance tools. `setup` has that name there, too."""

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
"""A longer line loses its facts."""

_VALUE = 512
"""Bytes of a name, and of a fact that is text."""

_FACTS = 64
_BATCH = 256 << 10
"""Bytes that are written at once, or little more."""

_EXIT_SECONDS = 1.0
_COROUTINE = 0x80  # of code objects, as in inspect, which takes long to load

at_ready: list[Callable[[], None]] = []
"""Called once when this process writes that the start is over. They raise nothing."""

_FunctionT = TypeVar("_FunctionT", bound=Callable[..., Any])


class ProcessIdentity(NamedTuple):
    """The start that events belong to. rank is None for a process that has none, such as a node's service."""

    job: str = ""
    run: str = ""
    attempt: int = 0
    node: str = ""
    rank: int | None = None
    trace: str = ""
    parent: str = ""


def identity(environ: Mapping[str, str] | None = None) -> ProcessIdentity:
    """The identity that BOOTSEER_* variables give, else those of torchrun, Slurm, MPI and Kubernetes.

    A W3C TRACEPARENT becomes the trace and the parent of spans that have none.
    """
    environ = os.environ if environ is None else environ

    def first(names: tuple[str, ...], empty: str = "") -> str:
        return next((environ[name] for name in names if environ.get(name, "") not in ("", empty)), "")

    def number(names: tuple[str, ...]) -> int | None:
        text = first(names)
        return int(text) if text.isdecimal() and len(text) < 10 else None

    form = r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(?:-|$)"
    found = re.match(form, environ.get("TRACEPARENT", ""))
    trace, parent = found.groups() if found else ("", "")
    return ProcessIdentity(
        job=first(_JOBS),
        run=first(_RUNS, "none") or trace,  # which torchrun calls each run without a name
        attempt=number(_ATTEMPTS) or 0,
        node=environ.get(ENV_NODE) or os.uname().nodename,
        rank=number(_RANKS),
        trace=trace,
        parent=parent,
    )


def span_of(who: ProcessIdentity, stage: str, name: str = "") -> str:
    """The span that processes agree on which know nothing of one another: of a stage of this start, node and rank."""
    import hashlib

    text = json.dumps([who.job, who.run, who.attempt, who.node, who.rank, SECTIONS.get(stage, stage), name])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Span:
    """A stage, or a part of one, that has begun. Ends once, also as a context manager; an exception is noted."""

    def __init__(
        self, writer: Writer, stage: str, name: str, kind: str, parent: str, who: ProcessIdentity | None = None
    ) -> None:
        self.parent, self.id = parent, os.urandom(8).hex()
        self._end = functools.partial(writer.emit, "end", stage, name, span=self.id, kind=kind, who=who)
        self._ended = False

    def end(self, **facts: Any) -> None:
        """facts: plain values, such as bytes=, hits=, misses=, source=, cause=."""
        if not self._ended:
            self._ended = True
            self._end(facts=facts)

    def __enter__(self) -> Span:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        self.end(**({} if kind is None else {"error": kind.__name__}))


class Stage:
    """A stage that has not begun. As a context manager it is a span; as a decorator each call of the function, or run
    of the coroutine, is one."""

    def __init__(self, writer: Writer, stage: str, name: str, kind: str) -> None:
        self._writer, self._stage, self._name, self._kind = writer, stage, name, kind
        self._spans: list[Span] = []

    def __enter__(self) -> Span:
        self._spans.append(self._writer.begin(self._stage, self._name, kind=self._kind))
        return self._spans[-1]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        self._spans.pop().__exit__(kind, error, traceback)

    def __call__(self, function: _FunctionT) -> _FunctionT:
        name = self._name or getattr(function, "__qualname__", type(function).__qualname__)  # partials have none
        begin = functools.partial(self._writer.begin, self._stage, name, kind=self._kind)
        if getattr(getattr(function, "__code__", None), "co_flags", 0) & _COROUTINE:

            @functools.wraps(function)
            async def timed(*arguments: Any, **options: Any) -> Any:
                with begin():
                    return await function(*arguments, **options)

        else:

            @functools.wraps(function)
            def timed(*arguments: Any, **options: Any) -> Any:
                with begin():
                    return function(*arguments, **options)

        return timed  # type: ignore[return-value]


class Writer:
    """Writes the events of one process. folder: the spool, made when it is missing; "" writes nothing.

    source: the program that writes, such as "stripefs" or "job". problem: why the last events that were lost were lost,
    "" where none were. held: while it is true, no thread is started before `close`, and events wait in the queue.
    """

    def __init__(
        self, folder: str, who: ProcessIdentity, source: str, *, file_bytes: int = FILE_BYTES, files: int = FILES
    ) -> None:
        self.folder, self.identity, self.source = _absolute(folder), who, source
        self._file_bytes, self._files = file_bytes, files
        self._reset()
        if folder:
            _writers.add(self)

    def _reset(self) -> None:
        """Begin a file and numbers of this process's own."""
        self._lock = threading.RLock()  # a signal's handler may emit while its thread does
        self._queue: queue.SimpleQueue[bytes | threading.Event] = queue.SimpleQueue()
        self._started = False
        self._numbers = itertools.count()
        self._refused = 0
        self.problem, self.held = "", False

    def instant(self, stage: str, name: str = "", *, kind: str = "work", **facts: Any) -> None:
        self.emit("instant", stage, name, kind=kind, facts=facts)

    def begin(
        self, stage: str, name: str = "", *, kind: str = "work", parent: str = "", who: ProcessIdentity | None = None,
        **facts: Any,
    ) -> Span:  # fmt: skip
        span = Span(self, stage, name, kind, parent or self.identity.parent, who)
        self.emit("begin", stage, name, span=span.id, parent=span.parent, kind=kind, facts=facts, who=who)
        return span

    def stage(self, stage: str, name: str = "", *, kind: str = "work") -> Stage:
        """For `with writer.stage("model"):`, and as a decorator, where the name defaults to the function's."""
        return Stage(self, stage, name, kind)

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
        who: ProcessIdentity | None = None,
    ) -> None:
        """Queue one event: begin, end or instant. Never raises and never waits.

        wall_ns, mono_ns: the time of the event, where that is not now. who: in place of this writer's own identity.
        """
        if not self.folder:
            return
        try:
            line = self._line(event, stage, name, span, parent, kind, facts, wall_ns, mono_ns, who or self.identity)
        except Exception as error:  # noqa: BLE001 what the job handed over is no text, and its number is a gap
            self.problem = f"it cannot be written down: {type(error).__name__}"
            return
        if self._queue.qsize() >= QUEUE:
            with self._lock:
                self._refused += 1
            self.problem = "the disk is too slow"
            return
        self._queue.put(line)
        if not self._started and not self.held:
            self._start()
        if at_ready and (stage == "ready" or (event == "end" and SECTIONS.get(stage, stage) == "first_step")):
            calls, at_ready[:] = at_ready[:], []
            for call in calls:
                call()

    def close(self, timeout: float = 1.0) -> bool:
        """Wait until everything queued is written or lost, at most so many seconds; tells whether it is. Where no
        thread can be had this one writes, however long that takes."""
        if not self._started and self._queue.empty():
            return True
        self._start()
        over = threading.Event()
        self._queue.put(over)
        if not self._started:
            self._write(over)
        return over.wait(timeout)

    def _line(
        self, event: str, stage: str, name: str, span: str, parent: str, kind: str, facts: Mapping[str, Any] | None,
        wall_ns: int | None, mono_ns: int | None, who: ProcessIdentity,
    ) -> bytes:  # fmt: skip
        fields: dict[str, Any] = {
            "v": VERSION, "wall_ns": time.time_ns() if wall_ns is None else wall_ns,
            "mono_ns": time.monotonic_ns() if mono_ns is None else mono_ns, "event": event, "seq": next(self._numbers),
            "stage": _text(SECTIONS.get(stage, stage), 64), "name": _text(name, _VALUE) if name else "",
            "span": _text(span, 32) if span else "", "parent": _text(parent, 32) if parent else "", "kind": kind,
            "pid": os.getpid(), "attempt": who.attempt, "rank": who.rank, **_origin(who, self.source),
        }  # fmt: skip
        kept = {key: value for key, value in fields.items() if value not in ("", None)}
        if not facts:
            return _encoded(kept)
        try:
            some = itertools.islice(facts.items(), _FACTS)
            line = _encoded({**kept, "facts": {_text(key, 64): _plain(value) for key, value in some}})
        except Exception:  # noqa: BLE001 what the job handed over makes its own text
            line = b""
        return line if 0 < len(line) <= LINE_BYTES else _encoded({**kept, "cut": True})

    def _start(self) -> None:
        with self._lock:
            if self._started:
                return
            self._started = True
            before = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
            try:  # not by threading.Thread, which no handler of a signal can start while it starts another one
                _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())  # which the program may wait for
                _thread.start_new_thread(self._write, ())
            except RuntimeError:  # too many, or the interpreter ends: the queue is all there is, until `close`
                self._started, self.problem = False, "no thread can be started"
                return
            finally:
                _signal.pthread_sigmask(_signal.SIG_SETMASK, before)
        util = sys.modules.get("multiprocessing.util")
        if util is not None:  # its processes end without atexit
            util.Finalize(None, self.close, exitpriority=-100)

    def _write(self, last: threading.Event | None = None) -> None:
        """The thread: write what is queued, up to `last`, and tell of losses as soon as something can be written."""
        spool = _Spool(self.folder, self.identity.node, self._file_bytes, self._files)
        arrived, lost = self._queue, spool.lost
        for lines, waiting in _batches(arrived):
            with self._lock:
                lost["queue"] += self._refused
                self._refused = 0
            failure = spool.append(lines)
            if not failure and any(lost.values()):
                told = {cause: events for cause, events in lost.items() if events}
                failure = spool.append([self._dropped(*each) for each in told.items()], told)
            self.problem = failure or self.problem
            for each in waiting:
                each.set()
            if last is not None and last.is_set():
                return

    def _dropped(self, cause: str, events: int) -> bytes:
        facts = {"events": events, "cause": cause}
        return self._line("instant", "dropped", cause, "", "", "wait", facts, None, None, self.identity)


def _batches(
    arrived: queue.SimpleQueue[bytes | threading.Event],
) -> Iterator[tuple[list[bytes], list[threading.Event]]]:
    """All that is queued, as soon as there is something, up to `_BATCH` bytes and up to somebody who waits."""
    while True:
        lines: list[bytes] = []
        size = 0
        item: bytes | threading.Event | None = arrived.get()
        while isinstance(item, bytes):
            lines.append(item)
            size += len(item)
            try:
                item = arrived.get_nowait() if size < _BATCH else None
            except queue.Empty:
                break
        yield lines, [item] if isinstance(item, threading.Event) else []


class _Spool:
    """The files of one process, for its thread. lost: by cause, the events that no file holds or tells of."""

    def __init__(self, folder: str, node: str, file_bytes: int, files: int) -> None:
        self._folder, self._file_bytes, self._files = folder, file_bytes, max(files, 2)
        self._stem = f"{re.sub('[^A-Za-z0-9_-]', '-', node)[:64] or 'node'}.{os.getpid()}.{os.urandom(4).hex()}"
        self._descriptor, self._number, self._size = -1, -1, 0
        self._held: dict[int, Counter[str]] = {}  # by file: its lines, and the losses they report, lost with the file
        self.lost = Counter(queue=0, disk=0, rotation=0)

    def append(self, lines: Sequence[bytes], told: Mapping[str, int] | None = None) -> str:
        """Write lines, or as many as can be, and count the others; why not all were. told: the losses they tell of,
        one a line."""
        causes = list((told or {}).items())
        done = 0
        try:
            while done < len(lines):
                self._open(0 if told else len(lines[done]))  # that losses are told is to cause none
                end, size = done + 1, len(lines[done])
                while end < len(lines) and self._size + size + len(lines[end]) <= self._file_bytes:
                    size += len(lines[end])
                    end += 1
                written, failure = self._put(b"".join(lines[done:end]))
                for cause, events in causes[done : done + written]:
                    self.lost[cause] -= events
                    self._held[self._number][cause] += events
                done += written
                if failure:
                    raise failure
        except OSError as error:
            self.lost["disk"] += len(lines) - done
            return error.strerror or str(error)
        return ""

    def _open(self, wanted: int) -> None:
        """Have a file that still has a name and takes so many bytes more. Raises OSError."""
        if self._descriptor >= 0:
            fits = not wanted or not self._size or self._size + wanted <= self._file_bytes
            if fits and os.fstat(self._descriptor).st_nlink:
                return
            self._leave()
        _refuse_fuse(self._folder)
        os.makedirs(self._folder, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self._path(self._number + 1), flags, 0o644)
        self._number, self._size = self._number + 1, 0
        self._held[self._number] = Counter()
        for old in [number for number in self._held if 0 < number <= self._number - self._files + 1]:
            held = self._held.pop(old)
            with contextlib.suppress(OSError):  # gone with the folder, or it stays
                os.unlink(self._path(old))
                self.lost.update(held)

    def _put(self, data: bytes) -> tuple[int, OSError | None]:
        """Write whole lines. Returns the number of added lines, and the reason why not all were."""
        done, failure = 0, None
        try:
            while done < len(data):
                done += os.write(self._descriptor, data[done:] if done else data)
        except OSError as error:
            failure = error
        if not os.fstat(self._descriptor).st_nlink:
            self._leave()
            return 0, OSError(errno.ENOENT, "the folder was removed")
        whole = data.rfind(b"\n", 0, done) + 1
        self._size += whole
        lines = data.count(b"\n", 0, whole)
        self._held[self._number]["rotation"] += lines
        if whole < done:
            try:
                os.ftruncate(self._descriptor, self._size)
            except OSError:  # a line that is torn ends its file
                self._leave()
        return lines, failure

    def _leave(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        with contextlib.suppress(OSError):  # such as a network's disk tells only now; the descriptor is free anyhow
            os.close(descriptor)

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, f"{self._stem}.{number}.jsonl")


def _refuse_fuse(folder: str) -> None:
    """Raises OSError for a folder on a FUSE mount, which it does not touch: no process ends that waits for one.
    fuse-overlayfs is the root of containers of plain users, whose every process depends on it."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return
    kinds = {}
    for fields in mounts:
        place = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4])
        kinds[place] = fields[fields.index("-") + 1]  # of several at a place the last is seen

    rest, path, links = folder.split("/")[1:], "/", 0
    while True:
        kind = kinds.get(path, "")
        if kind.partition(".")[0] == "fuse" and kind != "fuse.fuse-overlayfs":
            raise OSError(errno.EOPNOTSUPP, f"{path} is a FUSE mount; use a folder on a local disk")
        if not rest:
            return
        below = os.path.normpath(os.path.join(path, rest.pop(0)))
        if below not in kinds and links < 40:
            with contextlib.suppress(OSError):  # no link, or nothing yet
                target = os.readlink(below)
                links += 1
                rest, below = [*target.strip("/").split("/"), *rest], "/" if target.startswith("/") else path
        path = below


def _absolute(folder: str) -> str:
    try:
        return os.path.abspath(folder) if folder else ""
    except OSError:  # the working directory is gone
        return folder


_writers: weakref.WeakSet[Writer] = weakref.WeakSet()


def _forked() -> None:
    for writer in list(_writers):
        writer._reset()


def _close_all() -> None:
    end = time.monotonic() + _EXIT_SECONDS
    for writer in list(_writers):
        writer.close(max(0.0, end - time.monotonic()))


os.register_at_fork(after_in_child=_forked)
atexit.register(_close_all)


def default_writer(source: str = "job") -> Writer:
    """The writer of this process for the folder that BOOTSEER_EVENTS names; one that writes nothing without it."""
    return _default_writer(source)


@functools.cache
def _default_writer(source: str) -> Writer:
    return Writer(os.environ.get(ENV_FOLDER, ""), identity(), source)


def follow_sections(client: Any, writer: Writer | None = None) -> None:
    """Make stages of the sections that a job tells NVIDIA's RankMonitorClient, until its first step has ended.

    client: has start_section(name) and end_section(name). Later sections, such as checkpoints that are saved, are no
    part of the start.
    """
    events = writer or default_writer()
    start, end = client.start_section, client.end_section
    spans: dict[str, Span] = {}

    def start_section(section: str) -> Any:
        spans[section] = events.begin(section)
        return start(section)

    def end_section(section: str) -> Any:
        answer = end(section)
        if section in spans:
            spans.pop(section).end()
        if SECTIONS.get(section, section) == "first_step":
            client.start_section, client.end_section = start, end
        return answer

    client.start_section, client.end_section = start_section, end_section


@functools.cache
def _boot() -> str:
    """Names the boot whose monotonic clock `mono_ns` is; "" where the kernel does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:  # a signal's handler can load no encoding
            return file.read().decode().replace("-", "")[:16].strip()
    except OSError:
        return ""


_NO_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")


def _text(value: object, limit: int = 256) -> str:
    """At most so many bytes of UTF-8, without control characters and lone surrogates."""
    if not isinstance(value, str):
        value = os.fsdecode(value) if isinstance(value, (bytes, os.PathLike)) else reprlib.repr(value)
    if len(value) <= limit and value.isascii() and value.isprintable():
        return value
    return _NO_TEXT.sub("\ufffd", value[:limit]).encode()[:limit].decode("utf-8", "ignore")


def _plain(value: object) -> object:
    """A fact as JSON and every reader of it can hold it."""
    if value is None or isinstance(value, (bool, str)):
        return _text(value, _VALUE) if isinstance(value, str) else value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    with contextlib.suppress(Exception):  # arrays and tensors have both, and may be no number
        if hasattr(type(value), "__index__"):
            number = operator.index(value)  # type: ignore[arg-type]
            return number if -(1 << 63) <= number < 1 << 63 else _text(hex(number), _VALUE)
    with contextlib.suppress(Exception):
        if hasattr(type(value), "__float__"):
            return _plain(float(value))  # type: ignore[arg-type]
    return _text(value, _VALUE)


@functools.lru_cache(maxsize=64)
def _origin(who: ProcessIdentity, source: str) -> dict[str, str]:
    texts = {"job": who.job, "run": who.run, "node": who.node, "source": source, "trace": who.trace}
    return {key: _text(text, 64 if key in ("source", "trace") else 256) for key, text in texts.items()} | {
        "boot": _boot()
    }


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def _encoded(fields: Mapping[str, Any]) -> bytes:
    return _encode(fields).encode() + b"\n"


_USE = "mark STAGE [begin|end|instant] [--name NAME] [--fact KEY=VALUE]... [--events DIR]"


def main(arguments: Sequence[str], program: str = "startup_events.py") -> int:
    """`mark STAGE …`: write one event. 2 for a line that is no such, else 0: a job is not to fail for it.

    `begin` and `end` of two processes make one span: its id follows from the start, the node, the rank, the stage and
    the name.
    """
    import getopt

    def tell(text: str) -> None:
        _say(f"{program} mark: {text}\n")

    flags: list[tuple[str, str]] = []
    words: list[str] = []
    rest = list(arguments)
    try:
        while rest:  # flags may follow words; gnu_getopt does not allow that where POSIXLY_CORRECT is set
            found, rest = getopt.getopt(rest, "", ["name=", "fact=", "events="])
            flags += found
            words, rest = words + rest[:1], rest[1:]
    except getopt.GetoptError:
        words = []
    given, facts = dict(flags), dict(text.partition("=")[::2] for flag, text in flags if flag == "--fact")
    words += ["instant"] * (len(words) == 2)
    command, stage, event = words if len(words) == 3 and all((*words, *facts)) else ("", "", "")
    if command != "mark" or event not in ("begin", "end", "instant"):
        _say(f"usage: {program} {_USE}\n")
        return 2
    folder = given.get("--events", os.environ.get(ENV_FOLDER))
    if not folder:
        if folder is None:
            tell(f"nothing is written; set {ENV_FOLDER} to a folder, or to nothing to be silent")
        return 0
    if SECTIONS.get(stage, stage) not in STAGES:
        tell(f"{stage!r} is no stage that reports know: {', '.join(STAGES)}")
    writer, name = Writer(folder, identity(), "job"), given.get("--name", "")
    span = "" if event == "instant" else span_of(writer.identity, stage, name)
    parent = writer.identity.parent if event == "begin" else ""
    values = {key: _value(text) for key, text in facts.items()}
    writer.emit(event, stage, name, span=span, parent=parent, facts=values)
    written = writer.close(2.0)
    if writer.problem or not written:
        tell(f"the event is lost: {folder}: {writer.problem or 'the disk does not answer'}")
    return 0


def _say(text: str) -> None:
    """Write to standard error, past the stream, which would fail once more when the program ends. That it is closed, or
    on a full disk, is no reason to fail."""
    try:
        os.write(sys.stderr.fileno(), text.encode(errors="backslashreplace"))
    except ValueError:  # somebody in this process takes it
        sys.stderr.write(text)
    except (OSError, AttributeError):
        pass


def _value(text: str) -> object:
    """The value of a fact on a command line: a number, true, false, or the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text, text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
