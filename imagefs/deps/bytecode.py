"""Bytecode for a whole installation, made by the interpreter that will import it.

Installers compile on one processor and note the time of each source beside its bytecode, which differs between two
installations of the same wheels. Here all processors compile, and what is noted is the hash of the source: the same
bytes each time, valid whatever becomes of times, and nothing is compiled by an import, also not from a read-only mount.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Literal

from imagefs.errors import SnapshotError

__all__ = [
    "CompileReport",
    "Mode",
    "command_for",
    "compile_command",
    "compile_environment",
    "compile_tree",
    "order_for",
    "parse_report",
]

Mode = Literal["unchecked", "checked"]
"""Whether an import believes the bytecode, or compares the hash of the source first: for sources that are edited."""


@dataclass(frozen=True, slots=True)
class CompileReport:
    """compiled: how many sources. failed: path and reason of those that are no valid programs, by path."""

    compiled: int
    failed: tuple[tuple[str, str], ...]
    seconds: float


def compile_tree(python: str, targets: Sequence[str], mode: Mode = "unchecked", *, workers: int = 0) -> CompileReport:
    """Compile every source below `targets`, directories, with `python`, a path or a name on PATH.

    workers: processes at once, 0 for one a processor. Bytecode that is there already is replaced. Raises SnapshotError
    when the interpreter cannot do it.
    """
    began = time.monotonic()
    command = compile_command(python, targets, mode, workers)
    with tempfile.TemporaryFile() as messages:
        try:
            # In /, since interpreters import from where they are started. Standard input tells when we have ended.
            process = subprocess.Popen(
                command,
                env=compile_environment(os.environ),
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
            )
        except OSError as error:
            raise SnapshotError(f"{python} cannot be run: {error.strerror}") from error
        with process:
            assert process.stdout is not None
            answer = process.stdout.read()
            status = process.wait()
        if status:
            messages.seek(0)
            last = messages.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise SnapshotError(f"{python} could not compile what was installed: {last or f'exit status {status}'}")
    return parse_report(answer, time.monotonic() - began)


def compile_command(python: str, targets: Sequence[str], mode: Mode, workers: int = 0) -> list[str]:
    """The command line that compiles `targets`, absolute paths as `python` sees them. workers: 0 for one a processor.

    Its standard input must be a pipe that stays open. What it writes to standard output is for `parse_report`.
    """
    return command_for(python, order_for(targets, mode, workers))


def command_for(python: str, order: str) -> list[str]:
    """The same for what `order_for` answers, or for @ and the path of a file with that: a command line is short."""
    script = resources.files(__package__).joinpath("bytecode_script.py").read_text(encoding="utf-8")
    return [python, "-S", "-s", "-B", "-W", "ignore", "-c", script, order]


def order_for(targets: Sequence[str], mode: Mode, workers: int = 0) -> str:
    """What is to be compiled, for `command_for`: directories and sources."""
    found = workers or len(os.sched_getaffinity(0))
    return json.dumps({"paths": list(targets), "checked": mode == "checked", "workers": found})


def compile_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for it: nothing that changes what a compiler writes or what the script imports."""
    kept = {name: value for name, value in environ.items() if not name.startswith("PYTHON") or name == "PYTHONHOME"}
    return kept | {"PYTHONHASHSEED": "0"}


def parse_report(answer: bytes, seconds: float) -> CompileReport:
    """From what the command wrote. Raises SnapshotError for anything else."""
    try:
        told = json.loads(answer)
        return CompileReport(
            int(told["compiled"]), tuple((str(path), str(why)) for path, why in told["failed"]), seconds
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise SnapshotError("the interpreter's report on what it compiled makes no sense") from error
