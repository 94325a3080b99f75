"""`imagefs compare`: a job started cold, again and again, without and with each technique.

Each start is an `imagefs run` of its own, with a daemon and caches in a temporary folder that goes afterwards. Its time
ends when the job says that it is ready ($IMAGEFS_READY, a `ready` event, or the end of its first step), and else when
its command ends. docs/jobs.md tells the techniques, and what a start does without each of them.

Starts with everything come before and are not measured: they leave what later ones build on, a trace of the image and
snapshots, in the stores of the job, as any run does. With start-up caches alone pip is part of the command, and so of
their key: then such a start comes before, too.

A start that is over is killed, which ends its container and its mounts; then its daemon is stopped and its folder goes.
Folders of a comparison that was killed itself are removed by the next one.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from imagefs.config import IMAGEFS
from imagefs.daemon.client import Client, NoDaemon
from imagefs.daemon.protocol import Recording
from imagefs.errors import RunError
from imagefs.jobs.job import COLLECTOR, IMAGEFS_COMMAND, PROGRAM, JobFile, read_events, ready_at, stage_seconds
from imagefs.run.namespace import end_with_parent
from imagefs.settings import DaemonSettings
from stripefs.cli.fastpath import Flag
from stripefs.errors import ConfigError, StripefsError
from stripefs.osutil import try_flock
from stripefs.settings import StoreSettings
from stripefs.startup_events import ENV_FOLDER, STAGES

__all__ = [
    "MeasuredStart",
    "Variant",
    "VariantFigures",
    "compare",
    "drop_page_cache",
    "is_publishing",
    "start_words",
    "variants",
]

_LOOK_EVERY = 0.05
_LEAVES_WITHIN = 30.0
_PREFIX = "imagefs-compare-"
_LEARNS_WITHIN = 60.0
"""Seconds for which the plan of the image is waited for, once a start was recorded."""

_BEGINS_WITHIN, _PUBLISHES_WITHIN = 2.0, 300.0
"""Seconds until start-up caches begin to be published when the job is ready, and until they are."""

_PUBLISHER = b"imagefs.startup_cache.publisher"

_OWN = ("cache", "runtime", "events", "collector", "job")
"""Flags that each start has of its own, or not at all."""

_INSTALL = f"""
import os, subprocess, sys
sys.path.insert(0, {os.path.dirname(PROGRAM)!r})
import startup_events
writer = startup_events.default_writer("imagefs")
end = sys.argv.index("--")
with writer.begin("dependencies", "install"):
    done = subprocess.call([sys.executable, "-m", "pip", "install", *sys.argv[1:end]])
writer.close()
if done:
    sys.exit(done)
command = sys.argv[end + 1:]
os.execvp(command[0], command)
"""
"""Installs what its first words name and becomes the command behind `--`."""


class Variant(NamedTuple):
    """A way to start the job. techniques: those that are in use. arguments: of `imagefs run`, without the folders."""

    name: str
    techniques: tuple[str, ...]
    arguments: tuple[str, ...]


class MeasuredStart(NamedTuple):
    """One start: seconds in all, and of each stage in which anything happened."""

    seconds: float
    stages: Mapping[str, float]


class VariantFigures(NamedTuple):
    """The starts of a variant."""

    variant: Variant
    starts: Sequence[MeasuredStart]

    def of(self, stage: str = "") -> list[float]:
        """Seconds of a stage in each start, of all of it where none is named."""
        return [one.stages.get(stage, 0.0) if stage else one.seconds for one in self.starts]

    def as_dict(self) -> dict[str, Any]:
        stages = [stage for stage in STAGES if any(self.of(stage))]
        total, by_stage = summary(self.of()), {stage: summary(self.of(stage)) for stage in stages}
        return {"name": self.variant.name, "techniques": self.variant.techniques, **total, "stages": by_stage}


def summary(seconds: Sequence[float]) -> dict[str, Any]:
    """Median and spread."""
    rounded = [round(one, 3) for one in seconds]
    return {"median": round(statistics.median(seconds), 3), "least": min(rounded), "most": max(rounded), "all": rounded}


# The variants. Pure.


def variants(job: JobFile, flags: Sequence[Flag], deps: Sequence[Flag]) -> list[Variant]:
    """None of the techniques that the job has, each alone, and all. Raises ConfigError.

    flags: all of `imagefs run`. deps: those of them that are about dependencies.
    """
    if not job.words:
        raise ConfigError(f"{job.path} names no image", hint='image = "…#TAG"')
    there = {"image": True, "deps": job.values.get("deps"), "checkpoint": job.values.get("checkpoints"),
             "caches": job.values.get("startup_cache")}  # fmt: skip
    techniques = [name for name, wanted in there.items() if wanted]
    if "deps" in techniques and len(job.words) < 2:
        raise ConfigError(f"{job.path} names no command, before which pip could install", hint='command = ["…"]')
    chosen: dict[str, tuple[str, ...]] = {"none": (), **{name: (name,) for name in techniques}}
    if len(techniques) > 1:
        chosen["all"] = tuple(techniques)
    return [Variant(name, used, tuple(_arguments(job, flags, deps, used))) for name, used in chosen.items()]


def _arguments(job: JobFile, flags: Sequence[Flag], deps: Sequence[Flag], used: Sequence[str]) -> list[str]:
    values, words = dict(job.values), list(job.words)
    if "image" not in used:
        values |= {"unpack": True, "workload": "compare-none", "no_record": True}
    if "deps" not in used and values.get("deps"):
        words, values = _installing(words, values, deps)
    if "checkpoint" not in used and values.get("checkpoints"):
        one_stream = "threads=1,per_host=1,nohedge"
        values |= {
            "checkpoint_warm": "none",
            "checkpoint_options": [*values.get("checkpoint_options", ()), one_stream],
        }
    if "caches" not in used:
        values.pop("startup_cache", None)
    found = [IMAGEFS.as_flag(name, text) for name, (text, _) in job.given.items() if name not in _OWN]
    for flag in flags:
        value = values.get(flag.field, flag.unset)
        if value == flag.unset or flag.name in _OWN:
            continue
        if flag.kind in ("switch", "either"):
            found.append(f"--{flag.name}" if value else f"--no-{flag.name}")
        else:
            found += [f"--{flag.name}={one}" for one in (value if flag.kind == "texts" else [value])]
    return [*found, words[0], "--", *words[1:]]


def _installing(
    words: Sequence[str], values: Mapping[str, Any], deps: Sequence[Flag]
) -> tuple[list[str], dict[str, Any]]:
    """The same job without snapshots: its container, which sees the directories of the files, installs first."""
    python, target = values.get("deps_python") or "python3", values.get("deps_target")
    files = [os.path.abspath(path) for path in values["deps"]]
    folders = sorted({os.path.dirname(path) for path in files})
    asked = [word for path in files for word in ("-r", path)]
    asked += ["--target", target] if target else []
    image, *command = words
    mine = {flag.field for flag in deps}
    kept = {field: value for field, value in values.items() if field not in mine}
    kept["binds"] = [*values.get("binds", ()), *(f"{folder}:{folder}:ro" for folder in folders)]
    kept["env"] = ["PIP_BREAK_SYSTEM_PACKAGES=1", "PIP_ROOT_USER_ACTION=ignore", *values.get("env", ())]
    return [image, python, "-c", _INSTALL, *asked, "--", *command], {**kept, "rw": True}


# Starts


def compare(
    job: JobFile, ways: Sequence[Variant], rounds: int, store: StoreSettings, tell: Callable[[str], None]
) -> list[VariantFigures]:
    """Start the job so often in each way, by turns. Raises StripefsError, with nothing left behind.

    store: of the job's image, with which a recorded start is waited for. tell: gets lines about the progress.
    """
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # ends the start that is under way
    _sweep()
    everything = ways[-1]
    before = [everything] if {"deps", "caches"} & {*everything.techniques} else []
    if "deps" in everything.techniques:  # without it the command begins with pip, and caches have another key
        before += [way for way in ways if way.techniques == ("caches",)]
    for way in before:
        tell("a start that is not measured, for the snapshots")
        with _folder() as folder:
            more = ["--deps-wait"] if "deps" in way.techniques else []
            _start(way, folder, *more, publishes="caches" in way.techniques)
    tell("a start that is not measured, for the trace")
    with _folder() as folder:
        _start(everything, folder)
        _learned(folder, store, job.words[0].rpartition("#")[2], tell)
    starts: dict[str, list[MeasuredStart]] = {way.name: [] for way in ways}
    for number in range(rounds):
        for way in ways:
            with _folder() as folder:
                drop_page_cache()
                found = _start(way, folder)
            starts[way.name].append(found)
            tell(f"round {number + 1} of {rounds}, {way.name}: {found.seconds:.2f} s")
    return [VariantFigures(way, starts[way.name]) for way in ways]


def drop_page_cache() -> bool:
    """Have the kernel forget files, which only root may ask for; tells whether it was asked."""
    if os.geteuid() != 0:
        return False
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError:  # in a container
        return False
    return True


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A host's folders, and the daemon that comes to run there, which ends with the block."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = _locked(folder)
    try:
        yield folder
    finally:
        with _uninterrupted():
            _clear(folder)
            if lock is not None:
                os.close(lock)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """An interrupt that comes in the block is one when it ends."""
    came: list[int] = []
    wanted = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda told, _: came.append(told)) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def _sweep() -> None:
    """Remove the folders of comparisons that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if (lock := _locked(folder)) is not None:
            _clear(folder)
            os.close(lock)


def _locked(folder: Path) -> int | None:
    """A descriptor that says that somebody uses the folder; None where somebody else does, or may."""
    with contextlib.ExitStack() as undo, contextlib.suppress(OSError):
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        undo.callback(os.close, lock)
        if os.fstat(lock).st_uid == os.geteuid() and try_flock(lock):
            undo.pop_all()
            return lock
    return None


def _clear(folder: Path) -> None:
    """Remove what containers that were killed left, end the daemon, and remove the folder as soon as nothing is mounted
    there and nobody writes any more."""
    from imagefs.daemon import launcher
    from imagefs.run.bundle import sweep
    from stripefs.fuse import kernel

    settings = _daemon(folder)
    runs = Path(settings.runtime, "imagefs")

    def mounted() -> bool:
        return any(Path(one.path).is_relative_to(folder.resolve()) for one in kernel.mounts())

    def swept() -> bool:
        sweep(str(runs))
        return not list(runs.glob("runs/imagefs-*"))

    def removed() -> bool:
        if swept() and not mounted():
            shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    _wait(swept, _LEAVES_WITHIN)  # a daemon that ends while its mounts are in use leaves helpers, which still write
    if daemon := launcher.running(settings):
        _stop(settings, daemon.supervisor_pid)
    _wait(lambda: not mounted(), _LEAVES_WITHIN)
    _wait(removed, _LEAVES_WITHIN)


def _stop(settings: DaemonSettings, supervisor: int) -> None:
    """End the daemon. Returns when its process has ended, after its worker and helpers, or within `_LEAVES_WITHIN`."""
    with contextlib.suppress(NoDaemon, ProcessLookupError):
        process = os.pidfd_open(supervisor)
        try:
            Client(settings, starts=False).stop(force=True)
            select.select([process], [], [], _LEAVES_WITHIN)
        finally:
            os.close(process)


def _daemon(folder: Path) -> DaemonSettings:
    return DaemonSettings(cache=str(folder / "cache"), runtime=str(folder / "run"))


def start_words(way: Variant, folder: Path, more: Sequence[str] = ()) -> list[str]:
    """The arguments of `imagefs run` for a start whose caches and daemon are in this folder. more: flags."""
    settings, end = _daemon(folder), way.arguments.index("--") - 1  # its own flags stand last, and so count
    own = [f"--cache={settings.cache}", f"--runtime={settings.runtime}", f"--events={folder}/events"]
    if any(word.startswith("--checkpoint=") for word in way.arguments[:end]):
        own.append(f"--checkpoint-option=cache={settings.cache}/checkpoints")
    return [*way.arguments[:end], *own, *more, *way.arguments[end:]]


def _start(way: Variant, folder: Path, *more: str, publishes: bool = False) -> MeasuredStart:
    """publishes: the run goes on until what it publishes when the job is ready is published. Raises RunError where the
    job fails."""
    events = folder / "events"
    parent = os.pidfd_open(os.getpid())
    environment = {**os.environ}
    for name in ("TRACEPARENT", ENV_FOLDER, COLLECTOR):
        environment.pop(name, None)
    with tempfile.TemporaryFile() as output:
        begun = time.monotonic_ns()
        process = subprocess.Popen(
            [*IMAGEFS_COMMAND, "run", *start_words(way, folder, more)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=lambda: end_with_parent(parent),
        )
        os.close(parent)
        try:
            _wait(lambda: process.poll() is not None or ready_at(events) is not None)
            if publishes:
                _wait(lambda: is_publishing(process.pid), _BEGINS_WITHIN)
                _wait(lambda: not is_publishing(process.pid), _PUBLISHES_WITHIN)
        finally:
            ended, status = time.monotonic_ns(), process.poll()
            process.kill()  # its container may take no notice of gentler signals
            process.wait()
        if status:
            output.seek(0)
            lines = output.read().decode(errors="replace").strip().splitlines() or [f"exit status {status}"]
            raise RunError(f"the job fails when it is started with {way.name}: {lines[-1]}")
    until = ready_at(events) or ended
    return MeasuredStart((until - begun) / 1e9, stage_seconds(read_events(events), begun, until))


def is_publishing(pid: int) -> bool:
    """Tells whether a child of this process publishes start-up caches."""
    for process in Path("/proc").glob("[0-9]*"):  # the lists of children lack those whose thread is just ending
        with contextlib.suppress(OSError):  # it ended
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and _PUBLISHER in (process / "cmdline").read_bytes().split(b"\0"):
                return True
    return False


def _learned(folder: Path, store: StoreSettings, image: str, tell: Callable[[str], None]) -> None:
    """Wait until the image has a plan, which the recorded start is made into."""
    client = Client(_daemon(folder), starts=False)

    def planned() -> bool:
        attached = client.attach(store, image, Recording(off=True), owner=os.getpid())
        try:
            return any(one["id"] == attached.id and one.get("planned_blocks") for one in client.status()["images"])
        finally:
            client.detach(attached.id)

    try:
        if not _wait(planned, _LEARNS_WITHIN):
            tell("the image has no plan: its store cannot be written, or the start touched nothing that was not here")
    except StripefsError as error:
        tell(f"whether the image has a plan is not known: {error}")


def _wait(condition: Callable[[], bool], seconds: float = float("inf")) -> bool:
    """True where it came to be true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(_LOOK_EVERY)
    return True
