"""The cost of starting the commands, measured by their imports: a time would depend on the machine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from stripefs.extras import EXTRAS

STRIPEFS, HELPER, IMAGEFS = (Path(sys.executable).with_name(name) for name in ("stripefs", "mount.stripefs", "imagefs"))

HEAVY = {"trio", "pyfuse3", "pyarrow", "hdfs_native", "importlib.metadata", "pkg_resources", "prometheus_client"}


def imported(*command: object) -> set[str]:
    """All modules that running this Python program imports, the interpreter's own included."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *map(str, command)], capture_output=True, text=True, check=True
    )
    return set(re.findall(r"^import time:[^|]*\|[^|]*\|\s*(\S+)$", done.stderr, re.MULTILINE))


@pytest.mark.parametrize(
    ("command", "flag", "own"),
    [
        (STRIPEFS, "--help", {"stripefs.cli.main"}),
        (STRIPEFS, "-h", {"stripefs.cli.main"}),
        (IMAGEFS, "--help", {"imagefs", "imagefs.cli", "imagefs.cli.main"}),
    ],
)
def test_the_help_page_imports_nothing_but_itself(command: Path, flag: str, own: set[str]) -> None:
    bare = imported("-c", "import __future__, re")  # older installers write a wrapper that imports re
    assert imported(command, flag) - bare == {"stripefs", "stripefs.cli", "stripefs.cli.program"} | own


@pytest.mark.parametrize("words", ["mount --help", "status", "umount --help", "completion bash"])
def test_no_command_imports_what_it_does_not_use(words: str) -> None:
    assert imported(STRIPEFS, *words.split()).isdisjoint(HEAVY)


@pytest.mark.parametrize("command", ["ls", "build", "verify", "trace", "status", "run"])
def test_no_command_of_imagefs_imports_what_it_does_not_use(command: str, tmp_path: Path) -> None:
    arguments = ["ls", tmp_path] if command == "ls" else [command, "--help"]
    assert imported(IMAGEFS, *arguments).isdisjoint(HEAVY | {"httpx", "zstandard"})


def test_the_mount_helper_needs_no_click() -> None:
    assert imported(HELPER, "--version").isdisjoint(HEAVY | {"click"})


def test_events_are_written_and_collected_without_what_extras_bring(tmp_path: Path) -> None:
    events, collected = tmp_path / "events", tmp_path / "collected"
    used = imported(IMAGEFS, "startup", "mark", "ready", "--events", events)
    used |= imported(IMAGEFS, "startup", "collect", events, collected)
    assert list(collected.rglob("*.jsonl"))
    assert used.isdisjoint(EXTRAS)


def test_a_run_asks_the_daemon_before_it_loads_what_it_needs_later() -> None:
    asking = imported("-c", "import imagefs.cli.fastpath, imagefs.containers") - imported("-c", "pass")
    assert asking.isdisjoint({"pathlib", "urllib.parse", "subprocess", "imagefs.run.container", "imagefs.mounts"})
