"""The owner of a start that names none: programs that only stand between are passed over."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from imagefs.cli.deps.fastpath import users_of
from imagefs.daemon import processes
from stripefs.errors import ConfigError

ASK = [sys.executable, "-c", "from imagefs.cli.deps.fastpath import users_of; print(users_of(''))"]


def asked(*between: str) -> str:
    """The output of a process that is started by these."""
    return subprocess.run([*between, *ASK], capture_output=True, text=True, check=True).stdout.strip()


def user(process: int) -> list[tuple[int, int]]:
    return [(process, processes.began(process))]


def test_the_one_that_is_named() -> None:
    assert users_of(str(os.getpid())) == user(os.getpid())
    for other in ("4194305", "0", "me", "-1"):
        with pytest.raises(ConfigError, match="no such process"):
            users_of(other)


def test_the_one_that_runs_the_command(tmp_path: Path) -> None:
    own = str(user(os.getpid()))
    assert asked() == own
    assert asked("timeout", "1000") == own
    assert asked("flock", str(tmp_path / "lock"), "timeout", "1000") == own
    script = 'echo $$; "$@"; true'
    shell, told = asked("sh", "-c", script, "sh").splitlines()
    assert told.startswith(f"[({shell}, ")


@pytest.mark.root
@pytest.mark.parametrize("between", [(), ("sh", "-c", '"$@"; true', "sh"), ("timeout", "1000")], ids=str)
def test_nobody_where_nobody_is_to_be_seen(between: Sequence[str]) -> None:
    """As the first process of a container, as a child of it, and by `docker exec`."""
    assert asked("unshare", "--pid", "--fork", "--mount-proc", *between) == "[]"
