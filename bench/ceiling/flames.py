"""Stacks of a process tree under load, folded: `FRAME;FRAME;… COUNT` a line, as flame graph tools read them.

perf samples processor time of the programs and of the kernel's work for them. Python 3.12 and later name their own
functions (PYTHONPERFSUPPORT=1); before that the frames are those of the interpreter.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.harness import BenchError
from bench.harness.processes import tree
from bench.harness.programs import output

__all__ = ["folded", "profiled"]

_HERTZ = 499  # no multiple of what timers run at
_BEGINS_WITHIN = 2.0
_FRAME = re.compile(r"^\s+[0-9a-f]+ (?P<name>.+?)(?:\+0x[0-9a-f]+)? \((?P<file>.*)\)$")


@contextmanager
def profiled(root: int, file: Path) -> Iterator[None]:
    """Sample the processes below `root` while the block runs, and write their stacks. Raises BenchError."""
    if shutil.which("perf") is None:
        raise BenchError("--profile needs perf: install linux-perf")
    pids = ",".join(map(str, tree(root)))
    with tempfile.TemporaryDirectory(prefix="bench-perf-") as scratch:
        data = Path(scratch, "perf.data")
        command = ["perf", "record", "-e", "cpu-clock", "-F", str(_HERTZ), "-g", "-p", pids, "-o", str(data)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            deadline = time.monotonic() + _BEGINS_WITHIN
            while process.poll() is None and not data.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            try:
                yield
            finally:
                process.send_signal(signal.SIGINT)
                _, said = process.communicate()
        if not data.exists():
            raise BenchError(f"perf recorded nothing: {said.strip().splitlines()[-1:]}")
        stacks = folded(output("perf", "script", "-i", data, "-F", "comm,ip,sym,dso").splitlines())
    file.write_text("".join(f"{stack} {count}\n" for stack, count in sorted(stacks.items())))


def folded(lines: Iterable[str]) -> Counter[str]:
    """Samples of `perf script`, counted by their stacks: the program first, then its frames from the outermost in.

    A frame without a name is called after the file that it is in.
    """
    found: Counter[str] = Counter()
    program = ""
    frames: list[str] = []
    for line in [*lines, ""]:
        if not line.strip():
            if program:
                found[";".join([program, *reversed(frames)])] += 1
            program, frames = "", []
        elif match := _FRAME.match(line):
            name = match["name"] if match["name"] != "[unknown]" else f"[{Path(match['file']).name.strip('[]')}]"
            frames.append(name.replace(";", ":").replace(" ", "_"))
        else:
            program = line.split()[0]
    return found
