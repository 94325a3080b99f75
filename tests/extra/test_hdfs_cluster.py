"""`./scripts/hdfs-cluster` itself: the rate of its links, and a start that is broken off or refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.waiting import eventually
from tests.tools.hdfs import COMMAND, hdfs_instance

pytestmark = [pytest.mark.cluster, pytest.mark.root]

SMALL = ("--datanodes", "2", "--rate", "0", "--block-size", "1MiB")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=120)


def buckets(namespace: str, link: str) -> list[int]:
    """Bytes a second of each token bucket at this end of a link."""
    shown = subprocess.check_output(["tc", "-netns", namespace, "-json", "qdisc", "show", "dev", link])
    return [entry["options"]["rate"] for entry in json.loads(shown) if entry["kind"] == "tbf"]


def processes(name: str) -> list[str]:
    """JVMs of the instance `name`."""
    found = subprocess.run(["pgrep", "--full", f"java.*-Dbootseer.hdfs={name}/"], capture_output=True, text=True)
    return found.stdout.split()


def traces(name: str) -> list[str]:
    """Traces of the instance `name` that the machine still shows."""
    found = [entry.name for entry in Path("/run/netns").iterdir() if entry.name.startswith(f"hdfs-{name}-")]
    return [*found, *processes(name), *map(str, Path("/var/tmp/bootseer-hdfs").glob(name))]


def assert_refused(done: subprocess.CompletedProcess[str], complaint: str) -> None:
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "error: " in line]
    assert complaint in line
    assert "Traceback" not in done.stderr


def test_the_rate_is_set_at_both_ends_of_every_link() -> None:
    with hdfs_instance("one", *SMALL) as instance:
        instance.set_rate(20)
        caps = [buckets(f"hdfs-{instance.name}-nn", node["node"]) for node in instance.datanodes]
        caps += [buckets(node["namespace"], "eth0") for node in instance.datanodes]
        assert caps == [[20_000_000]] * 4
        instance.set_rate(0)
        assert buckets(instance.datanodes[0]["namespace"], "eth0") == []
    assert traces(instance.name) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_interrupted_start_leaves_nothing(number: int, code: int) -> None:
    name = f"test-{os.getpid()}-cut"
    start = subprocess.Popen([COMMAND, "start", "--name", name, *SMALL], stderr=subprocess.PIPE, text=True)
    eventually(lambda: processes(name), "a first process")
    start.send_signal(number)
    start.communicate(timeout=60)
    assert start.returncode == code
    assert traces(name) == []
    stopped = run("stop", "--name", name)
    assert (stopped.returncode, stopped.stderr) == (0, f"hdfs-cluster: {name} was not there: nothing to stop\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("start", "--datanodes", "2", "--replication", "3"), "--replication must be 1 to --datanodes (2)"),
        (("kill", "nn", "--name", "test-none"), "there is no instance 'test-none'"),
    ],
)
def test_a_refusal_is_one_line(arguments: tuple[str, ...], complaint: str) -> None:
    assert_refused(run(*arguments), complaint)


def test_a_state_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    assert_refused(run("start", "--name", f"test-{os.getpid()}-x", "--state", str(tmp_path)), "holds other files")
    assert (tmp_path / "precious").exists()
