"""Bytecode for a whole installation, made by the interpreter that will import it, with its own `compileall`.

Installers compile on one processor and note the time of each source beside its bytecode, which differs between two
installations of the same wheels. Here all processors compile, and what is noted is the hash of the source
(`unchecked-hash`, PEP 552): it is valid whatever becomes of times, and an import compiles nothing, from a read-only
mount too. Bytecode that is there is replaced, never written to, since it may be a hardlink into an installer's cache.

Equal sources mostly give equal bytes, on which nothing here relies. Of 871 sources of 5 packages none differed
between one process and two with CPython 3.11, 3.12 and 3.13, none of the 850 that 3.8 compiles, and two with 3.10
(one run each). A module made for the purpose, whose sets hold names that its process knows already, differs with all
five. A file that differs takes room in a store, no more.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from imagefs.errors import SnapshotError

__all__ = ["Mode", "command", "compile_tree", "environment", "failures", "order", "sources_below"]

Mode = Literal["unchecked", "checked"]
"""Tells whether an import believes the bytecode, or compares the hash of the source first: for sources that are
edited."""

_PROGRAM = """
import functools, json, os, sys, threading
sys.path[:] = [path for path in sys.path if path]
import compileall, concurrent.futures, py_compile

def end_with_caller():
    while os.read(0, 4096):
        pass
    os.killpg(0, 9)
with open(sys.argv[1]) as file:
    job = json.load(file)
compiled = functools.partial(compileall.compile_file, force=True, quiet=2)
compiled.keywords["invalidation_mode"] = py_compile.PycInvalidationMode[job["mode"]]
with concurrent.futures.ProcessPoolExecutor(job["workers"]) as pool:
    done = pool.map(compiled, job["sources"], chunksize=4)
    threading.Thread(target=end_with_caller, daemon=True).start()  # after the processes, which are forked
    json.dump([path for path, good in zip(job["sources"], done) if not good], sys.stdout)
"""
"""For any CPython from 3.8 on. Its argument is a file with what `order` answers; it writes what `failures` reads. Its
standard input is a pipe: when that ends, so do all processes of its group."""


def compile_tree(python: str, targets: Sequence[str], mode: Mode = "unchecked", *, workers: int = 0) -> list[str]:
    """Compile every source below `targets`, directories, with `python`, a path or a name on PATH; those that do not
    compile, as templates for other versions do not.

    workers: processes at once, 0 for one a processor. Raises SnapshotError when the interpreter cannot do it; OSError.
    """
    sources = [path for top in targets for path in sources_below(top)]
    with tempfile.NamedTemporaryFile("w") as job, tempfile.TemporaryFile() as messages:
        job.write(order(sources, mode, workers))
        job.flush()
        try:
            # In /, since interpreters import from where they are started.
            process = subprocess.Popen(
                command(python, job.name),
                env=environment(os.environ),
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                start_new_session=True,
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
    return failures(answer)


def sources_below(top: str) -> Iterator[str]:
    """The sources in a directory; links to directories are not followed. Raises OSError."""

    def refuse(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(top, onerror=refuse):
        if os.path.basename(folder) != "__pycache__":
            paths = (os.path.join(folder, name) for name in names if name.endswith(".py"))
            yield from filter(os.path.isfile, paths)


def command(python: str, job: str) -> list[str]:
    """The command line that compiles what a file asks for. job: its path, as `python` sees it.

    It is to lead a group of processes, and its standard input must be a pipe that stays open: when that ends the group
    is killed. Its standard output is for `failures`.
    """
    return [python, "-S", "-s", "-B", "-W", "ignore", "-c", _PROGRAM, job]


def order(sources: Sequence[str], mode: Mode, workers: int = 0) -> str:
    """The content of the file that `command` is given: JSON.

    sources: absolute, as that interpreter sees them. workers: 0 for one a processor.
    """
    found = workers or min(len(os.sched_getaffinity(0)), len(sources) or 1)
    return json.dumps({"sources": list(sources), "mode": f"{mode.upper()}_HASH", "workers": found})


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for it: nothing that changes what a compiler writes or what is imported."""
    kept = {name: value for name, value in environ.items() if not name.startswith("PYTHON") or name == "PYTHONHOME"}
    return kept | {"PYTHONHASHSEED": "0"}


def failures(answer: bytes) -> list[str]:
    """The sources that did not compile, from what the command wrote. Raises SnapshotError for anything else."""
    try:
        return sorted(map(str, json.loads(answer)))
    except (ValueError, TypeError, RecursionError) as error:
        raise SnapshotError("the interpreter's report on what it compiled makes no sense") from error
