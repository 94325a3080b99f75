"""Measurement of `bench ceiling`: mounts of a folder in memory, and beside them what a mount costs at least.

The store is a folder of a tmpfs, which neither a network nor a disk slows down. Each run has a fresh mount. All mounts
get the kernel read-ahead and the number of requests under way that stripefs sets, so that the programs are compared and
not the settings of the kernel.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.ceiling.flames import profiled
from bench.ceiling.plan import CASES, SYSTEMS, measured, ratios
from bench.harness import BenchError, Say, peers
from bench.harness.data import GIB, MIB, DataFile, contents
from bench.harness.environment import CACHE, drop_caches, packages, remove_mounts, work_folder
from bench.harness.mounts import Mount, mounted
from bench.harness.processes import cpu_times
from bench.harness.programs import output, run, run_module, tool_version
from bench.harness.results import Document, summary
from bench.harness.rounds import Options as HarnessOptions
from bench.harness.rounds import Rounds, Store, in_turn
from stripefs.fuse import kernel
from stripefs.settings import MountSettings

__all__ = ["WORK", "Options", "measure"]

WORK = CACHE / "bench-ceiling"

SIZE, QUICK_SIZE = 2 * GIB, 256 * MIB
"""Bytes of the file."""

_FILE, _WRITTEN = "file", "written"
_LIMIT = 300.0  # seconds for one run
_PASSTHROUGH = Path("/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c")
_LIMITS = MountSettings()


@dataclass(frozen=True, slots=True)
class Options(HarnessOptions):
    """profile: where the stacks of stripefs under one sequential reader go, None for nowhere."""

    work: Path = WORK
    profile: Path | None = None


def measure(options: Options, say: Say, store: Store) -> Document:
    """The document, which `store` gets anew after each round. Raises BenchError where nothing can be measured."""
    size = QUICK_SIZE if options.quick else SIZE
    notes: list[str] = []
    with work_folder(options.work, _tidy) as stack:
        folder = stack.enter_context(_in_memory(options.work / "memory", size))
        facts = {
            "file_mib": size // MIB,
            "read_ahead_kib": _LIMITS.read_ahead_kb,
            "tools": {"pyfuse3": packages()["pyfuse3"], "libfuse": tool_version("fusermount3")},
        }
        done = Rounds.begin("ceiling", options, facts, summary(ratios()), say, store)
        commands = _commands(options.work, folder, size, notes, say)
        done.document.notes += notes
        runs = [(case, name) for case in CASES for name in commands if measured(case, name)]
        for number in range(done.rounds):
            for case, name in in_turn(runs, number):
                done.take(case, name, number, partial(_access, name, commands[name], folder, case, size))
            done.keep()
        if options.profile:
            say(f"a profile of one reader goes to {options.profile}")
            with _mount("stripefs", commands["stripefs"]) as mount, profiled(mount.pid, options.profile):
                drop_caches()
                _read_or_write(mount, "sequential", size)
    return done.document


@contextmanager
def _in_memory(folder: Path, size: int) -> Iterator[Path]:
    """A tmpfs with a file of `size` bytes, and room for another of that size and for its parts."""
    folder.mkdir(parents=True, exist_ok=True)
    run("mount", "-t", "tmpfs", "-o", f"size={4 * size}", "bench-ceiling", folder)
    with (folder / _FILE).open("wb") as file:
        for piece in contents(DataFile(_FILE, size, size), 0, size):
            file.write(piece)
    yield folder


def _tidy(work: Path) -> None:
    remove_mounts(work)
    shutil.rmtree(work / "memory", ignore_errors=True)


def _commands(work: Path, folder: Path, size: int, notes: list[str], say: Say) -> dict[str, list[str]]:
    """The command of each system that is there, but for the mount point, which ends it; notes say what is not."""
    program = str(Path(sys.executable).with_name("stripefs"))
    stripefs = [program, "mount", "--foreground", folder.as_uri()]
    found = {
        "stripefs": stripefs,
        "one_core": ["taskset", "--cpu-list", str(max(os.sched_getaffinity(0))), *stripefs],
        "minimal": [sys.executable, "-m", "bench.ceiling.minimal", str(size)],
    }
    try:
        found["passthrough"] = [*_passthrough(work), "-f", "-o", f"source={folder},cache=always"]
    except BenchError as error:
        notes.append(str(error))
    if rclone := peers.try_rclone(notes, say):
        found["rclone"] = [str(rclone), "mount", "--config", "/dev/null", "--vfs-cache-mode", "off", str(folder)]
    return {name: found[name] for name in SYSTEMS if name in found}


def _passthrough(work: Path) -> list[str]:
    """libfuse's own example, built of the sources that its package brings. Raises BenchError where it cannot be."""
    if not _PASSTHROUGH.exists():
        raise BenchError(f"passthrough is left out: {_PASSTHROUGH} is missing (libfuse3-dev has it)")
    binary = work / "passthrough_ll"
    flags = shlex.split(output("pkg-config", "--cflags", "--libs", "fuse3"))
    run("cc", "-O2", "-w", str(_PASSTHROUGH), "-o", str(binary), *flags)
    return [str(binary)]


@contextmanager
def _mount(name: str, command: Sequence[str]) -> Iterator[Mount]:
    """A mount of `command`, with the limits of the kernel that stripefs gives its own."""
    made: AbstractContextManager[Mount] = mounted(name, command, {"PYTHONPERFSUPPORT": "1"})
    with ExitStack() as stack:
        mount = stack.enter_context(made)
        point = kernel.find_mount(str(mount.folder))
        if point is None:
            raise BenchError(f"{name} is not mounted at {mount.folder} any more")
        report = kernel.tune(point, _LIMITS.read_ahead_kb, _LIMITS.max_background)
        if limits := [str(one["limit"]) for one in report.values() if one["limit"]]:
            raise BenchError(f"the kernel's limits of {name} cannot be set: {limits[0]}")
        yield mount


def _access(name: str, command: Sequence[str], folder: Path, case: str, size: int) -> dict[str, float]:
    """One case on a fresh mount, the page cache empty. The server's processor time is counted from its mounting on."""
    words = ["--rw"] if name == "stripefs" and case == "write" else []
    with _mount(name, [*command, *words]) as mount:
        drop_caches()
        before = cpu_times(mount.pid)
        answer = _read_or_write(mount, case, size)
        user, system = (after - begun for after, begun in zip(cpu_times(mount.pid), before, strict=True))
    (folder / _WRITTEN).unlink(missing_ok=True)
    gigabytes = answer["bytes"] / 1e9
    return {
        "throughput": answer["bytes"] / 1e6 / answer["seconds"],
        "time": answer["seconds"],
        "cpu_per_gb": (answer["cpu"] + user + system) / gigabytes,
        "user_per_gb": user / gigabytes,
        "system_per_gb": system / gigabytes,
    }


def _read_or_write(mount: Mount, case: str, size: int) -> dict[str, float]:
    file = mount.folder / (_WRITTEN if case == "write" else _FILE)
    return run_module("bench.ceiling.access", [case, str(file), str(size)], "", _LIMIT, {}, mount.pid)
