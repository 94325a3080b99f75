"""`imagefs run` parses without click as click parses, and loads little before it asks the daemon."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from imagefs.cli import fastpath, run
from imagefs.cli.fastpath import plain_run
from imagefs.cli.flags import DEPS, JOB, RUN
from imagefs.config import IMAGEFS

HEAVY = {"click", "dataclasses", "inspect", "logging", "pathlib", "shutil", "ctypes", "threading", "traceback"}
HEAVY |= {"selectors", "socket", "typing"}
FLAGS = [f"--{flag.name}" for flag in (*RUN, *DEPS, *JOB)] + [f"--{option.name}" for option in IMAGEFS.all]
WORDS = st.one_of(
    st.sampled_from([*FLAGS, "--tty", "--no-tty", "--no-use-datanode-hostname", "--", "-", "", "--nothing", "-x"]),
    st.sampled_from(["/srv/images#one", "python", "-c", "host", "none", "erofs", "tree", "8MiB", "A=B"]),
    st.builds("{}={}".format, st.sampled_from(FLAGS), st.sampled_from(["", "host", "erofs", "A=B", "-x"])),
)


@pytest.fixture(scope="module")
def begun() -> Any:
    """Arguments of runs, which are recorded and not begun."""
    patch = pytest.MonkeyPatch()
    taken: list[tuple[tuple[str, ...], dict[str, Any], dict[str, Any], frozenset[str]]] = []

    def begin_run(words: Sequence[str], values: Any, given: Any, said: frozenset[str]) -> int:
        taken.append((tuple(words), dict(values), dict(given), said))
        return 0

    patch.setattr(fastpath, "begin_run", begin_run)
    patch.setattr(run, "begin_run", begin_run)
    yield taken
    patch.undo()


@example(arguments=["/srv/images#one", "--mirror="])
@given(arguments=st.lists(WORDS, max_size=8))
def test_what_is_read_plainly_is_what_click_reads(begun: Any, arguments: list[str]) -> None:
    begun.clear()
    body = plain_run(arguments)
    if body is None:
        return
    assert body() == 0
    run.run_command.main(arguments, standalone_mode=False)
    assert begun[0] == begun[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["store#a"],
        ["--rw", "--bind", "/a:/b", "--bind=/c:/d:ro", "store#a", "--", "sh", "-c", "true"],
        ["--deps", "a.txt", "--deps=b.txt", "--deps-env", "A", "--store", "x", "store#a", "true"],
        ["store#a", "true", "--runtime", "/run/x", "--no-tty", "--no-record", "--network", "none", "--workdir="],
    ],
    ids=" ".join,
)
def test_usual_lines_are_read_without_click(arguments: list[str]) -> None:
    assert plain_run(arguments) is not None


@pytest.mark.parametrize(
    "arguments",
    [[], ["--help"], ["-h", "a#b"], ["--runtim", "x", "a#b"], ["a#b", "--memory"], ["--rw=1", "a#b"],
     ["--plane", "ext4", "a#b"], ["a#b", "sh", "-c", "true"]],
    ids=" ".join,
)  # fmt: skip
def test_the_rest_is_for_click(arguments: list[str]) -> None:
    assert plain_run(arguments) is None


def test_little_is_loaded_before_the_daemon_is_asked() -> None:
    program = (
        "import gc, sys; from stripefs.fuse import control\n"
        "def collections(): return sum(one['collections'] for one in gc.get_stats())\n"
        "def ask(*_, **__): print(collections() - before, *sys.modules); raise SystemExit\n"
        "control.ask = ask; sys.argv = ['imagefs', 'run', '/srv/images#one']\n"
        "before = collections()\n"
        "from imagefs.cli.main import run; run()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    collections, *loaded = done.stdout.split()
    assert int(collections) <= 2, "once or so until the command has set how often"
    assert "imagefs.daemon.client" in loaded
    assert {*HEAVY, "stripefs.startup_events"}.isdisjoint(loaded)


def test_little_is_loaded_before_a_container_starts() -> None:
    program = (
        "import sys, imagefs.cli.fastpath\n"
        "from imagefs import containers\n"
        "containers._load('auto', None)\n"
        "import imagefs.run.options, imagefs.run.privileges\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "imagefs.run.container" in loaded
    assert loaded.isdisjoint(HEAVY - {"ctypes"})


def test_click_knows_every_flag() -> None:
    known = {
        name for parameter in run.run_command.params if isinstance(parameter, click.Option) for name in parameter.opts
    }
    assert {f"--{flag.name}" for flag in (*RUN, *DEPS, *JOB)} <= known
