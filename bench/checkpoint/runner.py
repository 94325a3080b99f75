"""Starts `bench.checkpoint.program`, which has torch and the loaders, and asks it to save and load.

It is started once, and anew after a run that was given up: importing torch takes seconds from a cold disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.cluster import ROOT, BenchError
from bench.lab import kill_server

__all__ = ["TORCH", "Runner"]

TORCH = Path(sys.prefix, "torch")
"""Where `need_torch` of scripts/lib/setup.sh puts torch and the loaders."""

_STARTS_WITHIN = 120.0
_LIMIT = 600.0  # seconds for one step of a job

_ENVIRONMENT = {
    "PYTHONPATH": str(TORCH),
    "OPENBLAS_NUM_THREADS": "1",  # it starts its threads when it is imported, and they do not survive a fork
    "TORCHINDUCTOR_DISABLE": "1",
}


class Runner:
    """A context that ends the process."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """environment: added to that of the process."""
        if not TORCH.exists():
            raise BenchError("torch is not set up: run ./scripts/bench checkpoint, which does it")
        self._environment = {**os.environ, **_ENVIRONMENT, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def prepare(self, job: Mapping[str, Any], mount: int = 0) -> None:
        """Have `job` prepared, up to what is measured. mount: the pid that serves the mount it uses. Raises BenchError.

        When this raises, and when it is interrupted, nothing of the job runs any more.
        """
        if self._process is None:
            self._start()
        self._ask(json.dumps(job), mount)

    def go(self, mount: int = 0) -> dict[str, float]:
        """Run what was prepared: its figures. Raises BenchError."""
        return self._ask("go", mount)

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.checkpoint.program"],
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # so that it can be killed with all that it has forked
        )
        self._listen(0, _STARTS_WITHIN)

    def _ask(self, line: str, mount: int) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        answer = self._listen(mount, _LIMIT)
        if "error" in answer:
            raise BenchError(answer["error"])
        return answer

    def _listen(self, mount: int, limit: float) -> dict[str, Any]:
        """The next line of the process; where none comes within `limit` seconds it is killed."""
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            if not select.select([self._process.stdout], [], [], limit)[0]:
                raise BenchError(f"had not ended after {limit:.0f} s and was given up")
            line = self._process.stdout.readline()
            if not line:
                raise BenchError("the loading process ended; what it said last stands above")
        except BaseException:
            kill_server(mount)
            self._end()
            raise
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
