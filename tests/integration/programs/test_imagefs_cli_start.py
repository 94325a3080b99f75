"""The cost of starting `imagefs`, measured by its imports."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stripefs.extras import EXTRAS
from tests.integration.programs.test_cli_start import HEAVY, imported

COMMAND = Path(sys.executable).with_name("imagefs")


def test_the_help_page_imports_nothing_but_itself() -> None:
    bare = imported("-c", "import __future__, re")
    page = {"imagefs", "imagefs.cli", "imagefs.cli.main", "stripefs", "stripefs.cli", "stripefs.cli.program"}
    assert imported(COMMAND, "--help") - bare == page


@pytest.mark.parametrize("command", ["ls", "build", "verify", "trace", "status", "run"])
def test_no_command_imports_what_it_does_not_use(command: str, tmp_path: Path) -> None:
    arguments = ["ls", tmp_path] if command == "ls" else [command, "--help"]
    assert imported(COMMAND, *arguments).isdisjoint(HEAVY | {"httpx", "zstandard"})


def test_events_are_written_and_collected_without_what_extras_bring(tmp_path: Path) -> None:
    events, collected = tmp_path / "events", tmp_path / "collected"
    used = imported(COMMAND, "startup", "mark", "ready", "--events", events)
    used |= imported(COMMAND, "startup", "collect", events, collected)
    assert list(collected.rglob("*.jsonl"))
    assert used.isdisjoint(EXTRAS)


def test_a_run_asks_the_daemon_before_it_loads_what_it_needs_later() -> None:
    asking = imported("-c", "import imagefs.cli.fastpath, imagefs.containers") - imported("-c", "pass")
    assert asking.isdisjoint({"pathlib", "urllib.parse", "subprocess", "imagefs.run.container", "imagefs.mounts"})
