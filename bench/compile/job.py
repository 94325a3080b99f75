"""An image with the job's program, and containers of it that see this host's Python, torch and compiler.

Compilers are found as `g++` below TOOLS first, which notes how it is called and then is the host's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.checkpoint.runner import TORCH
from bench.cluster import BenchError
from bench.host import PROGRAM
from bench.programs import run

__all__ = ["Job"]

_TOOLS = "/tools"
_WRAPPER = '#!/bin/sh\necho "$*" >>{log}/calls\nexec {compiler} "$@"\n'
_ENDS_WITHIN = 60.0


class Job:
    """It, with an image of its own below `folder`, which is made. Calls raise BenchError.

    layers: of its model. Each compiles some kernels.
    """

    def __init__(self, folder: Path, layers: int) -> None:
        compiler = shutil.which("g++")
        if compiler is None or not TORCH.exists():
            raise BenchError("TorchInductor needs g++ and torch: run ./scripts/bench compile, which sets them up")
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
        """How compilers were called since this was asked last, but for questions of their version."""
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
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            told = process.stdout.readline()
            if told:
                yield json.loads(told)
            _, errors = process.communicate("\n", timeout=_ENDS_WITHIN)
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            raise BenchError(f"the job failed: {(errors.strip().splitlines() or ['it said nothing'])[-1]}")


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
