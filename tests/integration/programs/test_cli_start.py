"""The cost of starting the command, measured by its imports: a time would depend on the machine."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).with_name("stripefs")
HELPER = Path(sys.executable).with_name("mount.stripefs")

HEAVY = {"trio", "pyfuse3", "pyarrow", "hdfs_native", "importlib.metadata", "pkg_resources", "prometheus_client"}


def imported(*command: object) -> set[str]:
    """All modules that running this Python program imports, the interpreter's own included."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *map(str, command)], capture_output=True, text=True, check=True
    )
    return set(re.findall(r"^import time:[^|]*\|[^|]*\|\s*(\S+)$", done.stderr, re.MULTILINE))


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_the_help_page_imports_nothing_but_itself(flag: str) -> None:
    bare = imported("-c", "import __future__, re")  # older installers write a wrapper that imports re
    assert imported(COMMAND, flag) - bare == {"stripefs", "stripefs.cli", "stripefs.cli.main", "stripefs.cli.program"}


@pytest.mark.parametrize(
    "command",
    [(COMMAND, "mount", "--help"), (COMMAND, "status"), (COMMAND, "umount", "--help"), (COMMAND, "completion", "bash")],
    ids=lambda command: command[1],
)
def test_no_command_imports_what_it_does_not_use(command: tuple[object, ...]) -> None:
    assert imported(*command).isdisjoint(HEAVY)


def test_the_mount_helper_needs_no_click() -> None:
    assert imported(HELPER, "--version").isdisjoint(HEAVY | {"click"})
