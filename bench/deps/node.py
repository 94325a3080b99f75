"""A host of a job: the directory that is installed into, the caches of installers, and what is run there.

Programs get a bare environment, so that neither settings of this machine nor of whoever runs the benchmark count.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bench.deps.plan import INSTALLER
from bench.harness import ROOT, BenchError
from bench.harness.environment import remove_tree
from bench.harness.host import PROGRAM, Host
from bench.harness.programs import last_line, run, started, wait_until

__all__ = ["UV", "Job", "Node", "answered", "interpreter", "published"]

UV = Path(sys.executable).with_name("uv")
_START = ROOT / "bench/harness/start.py"
_PUBLISHED_WITHIN = 300.0


@dataclass(frozen=True, slots=True)
class Job:
    """The surroundings of a job. index: the URL of a package index; modules: what it imports."""

    python: Path
    index: str
    requirements: Path
    modules: tuple[str, ...]


class Node:
    """One that has nothing yet, at this path. All that is written lies below it. Calls raise BenchError."""

    def __init__(self, folder: Path, job: Job) -> None:
        remove_tree(folder)
        for name in ("home", "tmp"):
            (folder / name).mkdir(parents=True)
        self.target = folder / "target"
        self._job = job
        self.environment = {
            "PATH": f"{UV.parent}:/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C.UTF-8",
            "HOME": str(folder / "home"),
            "TMPDIR": str(folder / "tmp"),
            "PIP_CACHE_DIR": str(folder / "pip"),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_ROOT_USER_ACTION": "ignore",
            "UV_CACHE_DIR": str(folder / "uv"),
            "UV_NO_CONFIG": "1",
        }

    def empty(self) -> None:
        """Remove what was installed, not what installers keep."""
        remove_tree(self.target)

    def pip(self, *options: str) -> None:
        """Install by pip."""
        command = [str(self._job.python), "-m", "pip", "install", "--target", str(self.target)]
        self._run([*command, *self._pip_words(), *options])

    def uv(self, *options: str) -> None:
        """Install by uv."""
        command = [str(UV), "pip", "install", "--python", str(self._job.python), "--target", str(self.target)]
        self._run([*command, *self._words(), *options])

    def imagefs(self, host: Host, store: str, *options: str, form: str = "pip") -> str:
        """`imagefs deps pip`, or `uv`, with the daemon of `host`; what it said."""
        words = self._pip_words() if form == "pip" else self._words()
        ours = ["--store", store, "--target", str(self.target), "--python", str(self._job.python), "--allow-conflicts"]
        return self._run([str(PROGRAM), "deps", form, *ours, *options, *words], host)

    def imports(self, target: Path | None = None) -> float:
        """Seconds until an interpreter that is started now has imported the modules, from the target by default."""
        environment = self.environment | {"PYTHONPATH": str(target or self.target)}
        with started([str(self._job.python), "-P", str(_START), *self._job.modules], environment) as start:
            return start.seconds

    def _words(self) -> list[str]:
        # Without torch, which is part of the image, what requires it is installed as it stands.
        return ["--quiet", "--no-deps", "--index-url", self._job.index, "-r", str(self._job.requirements)]

    def _pip_words(self) -> list[str]:
        return [*self._words(), "--trusted-host", str(urlsplit(self._job.index).hostname)]

    def _run(self, command: Sequence[str], host: Host | None = None) -> str:
        """Run it; its standard error."""
        environment = self.environment | (host.environment if host else {})
        done = subprocess.run(
            command,
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if done.returncode:
            raise BenchError(f"{' '.join(command[:3])} … failed: {last_line(done.stderr.strip() or done.stdout)}")
        return done.stderr


def answered(told: str) -> float:
    """Milliseconds that the daemon took, by what `imagefs deps` said of a hit. Raises BenchError where it was none."""
    found = re.search(r"^imagefs deps: hit .* mounted at .* \((\d+) ms\)$", told, re.MULTILINE)
    if found is None:
        raise BenchError(f"imagefs deps mounted nothing: {told.strip() or 'it said nothing'}")
    return float(found[1])


def interpreter(folder: Path, wheels: Path) -> Path:
    """The one that a job of a host runs: of a virtual environment, made anew, with nothing but pip of these wheels."""
    remove_tree(folder)
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin/python"
    how = ["--quiet", "--disable-pip-version-check", "--no-index", "--find-links", str(wheels)]
    run(sys.executable, "-m", "pip", "--python", python, "install", *how, INSTALLER)
    return python


def published(host: Host) -> float:
    """Time at which the installation of a host was published, by the monotonic clock. Raises BenchError for none."""
    outcomes = host.cache / "deps/outcomes"
    wait_until(lambda: any(outcomes.glob("*.json")), _PUBLISHED_WITHIN, "nothing was published")
    now, (outcome,) = time.monotonic(), outcomes.glob("*.json")
    told = json.loads(outcome.read_text())
    if not told["published"]:
        raise BenchError(f"not published: {'; '.join(told['lines'])}")
    return now
