"""Running programs: what they print, and failures in one line."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.cluster import BenchError

__all__ = ["inside", "output", "run"]


def inside(namespace: str) -> list[str]:
    """The words before a command that run it in a network namespace; none for "", where it runs in that of its caller.

    Not `ip netns exec`, which would give it a mount namespace of its own as well.
    """
    return ["nsenter", f"--net=/run/netns/{namespace}"] if namespace else []


def output(*command: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """What `command` prints. Raises BenchError with its last line where it fails."""
    done = subprocess.run(
        list(command), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", env=env, cwd=cwd
    )
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["it said nothing"]
        raise BenchError(f"{' '.join(map(str, command[:3]))} … failed: {words[-1]}")
    return done.stdout


def run(*command: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
    """The same for what it does."""
    output(*command, env=env, cwd=cwd)
