"""Measurement of `bench compile`: starts the job on hosts that have nothing of it.

Each round publishes anew: a start without caches, the first with them, from which they are published, and the second on
another host. Page caches stay as they are: what is compiled is measured, and not what is read.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.compile.plan import SYSTEMS, ratios
from bench.harness import BenchError, Say
from bench.harness.environment import CACHE, remove_mounts, remove_tree, work_folder
from bench.harness.host import PROGRAM, Host, host
from bench.harness.peers import TORCH
from bench.harness.programs import output, run, started, wait_until
from bench.harness.results import Document, summary
from bench.harness.rounds import Options as HarnessOptions
from bench.harness.rounds import Rounds, Store

__all__ = ["WORK", "Job", "Options", "measure"]

WORK = CACHE / "bench-compile"

_CACHES = ("--startup-cache", "inductor")
_PUBLISHED_WITHIN = 60.0
_TOOLS = "/tools"
_WRAPPER = '#!/bin/sh\necho "$*" >>{log}/calls\nexec {compiler} "$@"\n'


@dataclass(frozen=True, slots=True)
class Options(HarnessOptions):
    work: Path = WORK


def measure(options: Options, say: Say, store: Store) -> Document:
    """The document, which `store` gets anew after each round. Raises BenchError where nothing can be measured."""
    layers = 2 if options.quick else 8
    with work_folder(options.work, _tidy):
        compiler = _compiler()
        torch = next(TORCH.glob("torch-*.dist-info")).name.removesuffix(".dist-info").removeprefix("torch-")
        tools = {"torch": torch, "g++": output(compiler, "-dumpfullversion").strip()}
        done = Rounds.begin("compile", options, {"tools": tools, "layers": layers}, summary(ratios()), say, store)
        for number in range(done.rounds):
            remove_tree(options.work / "job")
            job = Job(options.work / "job", layers)
            for system, flags in zip(SYSTEMS, ((), _CACHES, _CACHES), strict=True):
                done.take("start", system, number, partial(_start, job, options.work, flags))
            done.keep()
    return done.document


def _start(job: Job, work: Path, flags: Sequence[str]) -> dict[str, float]:
    first = bool(flags) and not job.published()
    with host(work, daemon=False, drop=False) as here, job.started(here.environment, flags) as told:
        if first:
            wait_until(job.published, _PUBLISHED_WITHIN, "the caches were not published")
    if flags and not first and told["misses"]:
        raise BenchError(f"{told['misses']} graphs were not found in the caches")
    return {"time": told["time"], "cpu": told["cpu"]}


def _tidy(work: Path) -> None:
    """Take away what a benchmark leaves when it is killed, or fails in the wrong place."""
    Host(work / "host").stop()
    remove_mounts(work)
    for name in ("host", "job"):
        remove_tree(work / name)


class Job:
    """An image with the job's program, below `folder`, and its containers, which see this host's Python and torch.

    Compilers are found as `g++` below TOOLS first, which notes how it is called and then is the host's. layers: of the
    model; each compiles some kernels. The folder is made. Calls raise BenchError.
    """

    def __init__(self, folder: Path, layers: int) -> None:
        compiler = _compiler()
        self._layers = layers
        self.store, self.calls = folder / "store", folder / "log/calls"
        self._shown = _top_level([sys.executable, sys.prefix, TORCH.resolve(), compiler, sysconfig.get_path("stdlib")])
        tree = folder / "tree"
        for name in ("dev", "proc", "sys", "run", "tmp", "etc", "log", _TOOLS, *self._shown):
            (tree / name.lstrip("/")).mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(__file__).with_name("program.py"), tree / "program.py")
        self.calls.parent.mkdir()
        wrapper = tree / _TOOLS.lstrip("/") / "g++"
        wrapper.write_text(_WRAPPER.format(log="/log", compiler=compiler))
        wrapper.chmod(0o755)
        run(PROGRAM, "build", f"dir:{tree}", self.store, "--tag", "job")

    def published(self) -> bool:
        """True once its store has caches of a start."""
        return any((self.store / "deps").glob("[!.]*"))

    def compilations(self) -> list[str]:
        """The calls of compilers since this was asked last, but for questions of their version."""
        calls = self.calls.read_text().splitlines() if self.calls.exists() else []
        self.calls.unlink(missing_ok=True)
        return [call for call in calls if call not in ("--version", "-v", "-dumpversion", "-dumpmachine")]

    @contextmanager
    def started(self, environment: Mapping[str, str], options: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """A start on the host with this environment, which has said its figures, and goes on until the block ends.

        options: of `imagefs run`.
        """
        binds = [f"--bind={path}:{path}:ro" for path in self._shown]
        variables = {"PATH": f"{_TOOLS}:/usr/bin:/bin", "PYTHONPATH": str(TORCH.resolve()), "HOME": "/tmp"}
        command = [
            str(PROGRAM), "run", *options, *binds, f"--bind={self.calls.parent}:/log",
            *(f"--env={name}={value}" for name, value in variables.items()),
            f"{self.store}#job", "--", sys.executable, "/program.py", str(self._layers),
        ]  # fmt: skip
        with started(command, {**os.environ, **environment}) as start:
            yield start.said


def _compiler() -> str:
    """The path of the compiler that TorchInductor runs. Raises BenchError without it, or without torch."""
    found = shutil.which("g++")
    if found is None or not TORCH.exists():
        raise BenchError("TorchInductor needs g++ and torch: run ./scripts/bench compile, which sets them up")
    return found


def _top_level(paths: Sequence[str | Path]) -> list[str]:
    """Directories right below /, or /tmp, that hold these paths and what links there, and the system's own."""
    wanted = [Path(one) for path in paths for one in (path, os.path.realpath(path))]
    names = {os.path.join(*path.parts[: 3 if path.parts[1] == "tmp" else 2]) for path in wanted} | {
        "/bin",
        "/lib",
        "/lib64",
        "/usr",
    }
    return sorted(name for name in names if os.path.isdir(name))
