"""Signals reach the command, and everything ends with it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from imagefs.run import bundle
from tests.integration.imagefs.run.material import TRAPS, both
from tests.support.images.small_image import loops
from tests.tools.containers import Containers, wait_for
from tests.tools.imagefs_daemon import commands

pytestmark = [pytest.mark.mount, pytest.mark.root]


@both
def test_signals_reach_the_command(containers: Containers, runtime: str) -> None:
    stops = {"config": {"StopSignal": "SIGUSR1"}}  # the image says how it is stopped
    several = [
        (signal.SIGTERM, {}, 42),
        (signal.SIGINT, stops, 43),
        (signal.SIGUSR1, {}, 44),
        (signal.SIGTERM, stops, 44),
    ]
    started = [containers.start("sh", "-c", TRAPS, runtime=runtime, config=config) for _, config, _ in several]
    for running, (number, _, _) in zip(started, several, strict=True):
        running.says("ready")
        running.send(number)
    assert [running.end() for running in started] == [status for _, _, status in several]


def test_a_signal_ends_a_command_that_is_none_of_the_users(containers: Containers) -> None:
    running = containers.start("sh", "-c", TRAPS, aside=True)
    running.says("ready")
    running.send(signal.SIGTERM)
    assert running.end() == 128 + signal.SIGTERM


@both
def test_a_command_that_a_signal_ends(containers: Containers, runtime: str) -> None:
    running = containers.start("sh", "-c", "echo ready; exec sleep 1000", runtime=runtime)
    running.says("ready")

    def sleeping() -> list[int]:
        return [pid for pid, words in commands() if words == ["sleep", "1000", ""] and pid in containers.processes()]

    assert wait_for(sleeping), "the shell says so before it becomes the command"
    os.kill(sleeping()[0], signal.SIGKILL)
    assert running.end() == 128 + signal.SIGKILL


def test_a_signal_before_the_command_runs(containers: Containers, tmp_path: Path) -> None:
    running = containers.start("echo", "ran", hold=str(tmp_path / "never"))
    assert wait_for(containers.names)
    assert wait_for(lambda: len(containers.processes()) == 2)
    running.send(signal.SIGTERM)
    assert running.end() == 128 + signal.SIGTERM
    assert running.output == ""


@both
def test_daemons_end_with_the_command(containers: Containers, runtime: str) -> None:
    daemon = "(setsid sh -c 'trap \"\" TERM HUP INT; sleep 1000' >/dev/null 2>&1 &) & sleep 0.1; exit 3"
    assert containers.run("sh", "-c", daemon, runtime=runtime)[0] == 3


@both
def test_a_parent_that_is_killed_leaves_nothing(containers: Containers, runtime: str) -> None:
    daemon = "setsid sleep 1000 & touch /new; echo ready; sleep 1000"
    running = containers.start("sh", "-c", daemon, runtime=runtime, writable=True, backing="loop")
    running.says("ready")
    [name] = containers.names()
    assert containers.cgroups()
    assert Path(containers.scratch_dir, name, "upper/new").exists()
    running.send(signal.SIGKILL)
    assert running.end() == -signal.SIGKILL
    assert wait_for(lambda: not containers.processes())
    assert wait_for(lambda: not loops(Path(containers.image.metadata).parent))
    assert wait_for(lambda: bundle.sweep(containers.runtime_dir) == [name])
    assert containers.left() == []


def test_a_parent_that_is_killed_while_it_mounts(containers: Containers, tmp_path: Path) -> None:
    running = containers.start("true", hold=str(tmp_path / "never"))
    assert wait_for(lambda: len(containers.processes()) == 2)
    running.send(signal.SIGKILL)
    running.end()
    assert wait_for(lambda: not containers.processes())
    assert wait_for(lambda: containers.run("true")[0] == 0 and not containers.names())  # a run sweeps


@both
def test_a_server_of_the_tree_ends_with_the_command(containers: Containers, runtime: str) -> None:
    assert containers.run("sh", "-c", "exit 7", served=True, runtime=runtime)[0] == 7
    assert containers.run("nothing", served=True, runtime=runtime)[0] == 127
    running = containers.start("sh", "-c", TRAPS, served=True, runtime=runtime)
    running.says("ready")
    running.send(signal.SIGUSR1)
    assert running.end() == 44
    running = containers.start("sh", "-c", TRAPS, served=True, runtime=runtime)
    running.says("ready")
    running.send(signal.SIGKILL)
    running.end()
    assert wait_for(lambda: not containers.processes())
    assert wait_for(lambda: bundle.sweep(containers.runtime_dir))
