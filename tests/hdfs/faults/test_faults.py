"""Faults that a mount of a real HDFS survives: DataNodes, the NameNode and workers that die, and clocks that jump.

Readers are processes that check every byte (`tests.soak`), so a read that hangs is theirs and not the test's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.soak.crowd import Crowd
from tests.soak.engine import Contents
from tests.support.cgroup import MemoryCgroup
from tests.support.start_events import events_in
from tests.support.waiting import gone
from tests.support.wall_clock import Clock
from tests.tools.command import REPLACED, Live, Place, eventually
from tests.tools.hdfs import HdfsInstance

pytestmark = [pytest.mark.cluster, pytest.mark.mount, pytest.mark.root]

MIB = 1 << 20
CONTENTS = Contents("/faults", files=4, size=40 * MIB, block_size=MIB)
MEMORY = ("--memory", "64MiB")  # the least there is; the files do not fit, so reads go to the cluster all the time
AWAY = "the store is away"
PAUSE = 0.02
"""Seconds between two reads of a reader: what these tests wait for is no work, and other tests run beside them."""


@pytest.fixture(scope="module")
def filled(_hdfs_to_hurt: HdfsInstance) -> Iterator[None]:
    CONTENTS.write(_hdfs_to_hurt)
    yield
    CONTENTS.delete(_hdfs_to_hurt)


@pytest.fixture
def cluster(filled: None, fault_hdfs: HdfsInstance) -> HdfsInstance:
    return fault_hdfs


def mount(place: Place, cluster: HdfsInstance, *options: object) -> Live:
    return place.mount(f"{cluster.url}{CONTENTS.root}", *MEMORY, *options)


def readers(live: Live, count: int, *, pause: float = PAUSE, **options: Any) -> Crowd:
    return Crowd(live.path, count, pause=pause, **options)


@contextlib.contextmanager
def checked_copy(file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that compares the whole of `file` with what it must hold, and says what is wrong."""
    script = (
        "import sys; from pathlib import Path; from tests.support.checked_content import difference\n"
        "file = Path(sys.argv[1])\n"
        "sys.exit(difference(file.read_bytes(), file.name, 0))"
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(file)], stderr=subprocess.PIPE)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def outcome(child: subprocess.Popen[bytes]) -> str:
    """The error of a `checked_copy`; "" when all was right."""
    _, said = child.communicate(timeout=150)
    return said.decode().strip().rpartition("\n")[2]


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_datanode_dies_or_freezes(cluster: HdfsInstance, place: Place, tmp_path: Path, how: str) -> None:
    cluster.set_rate(20)
    live = mount(place, cluster, "--host-timeout", "3s", "--events", tmp_path / "events")
    with readers(live, 4) as crowd:
        crowd.get_on()
        getattr(cluster, how)("dn2")
        for _ in range(3):
            crowd.get_on()
        crowd.finish()
    with checked_copy(live.path / "file1") as copy:
        assert outcome(copy) == ""
    status = live.told_status()
    assert status["reader"]["hedges"] + status["reader"]["retries"] > 0
    (victim,) = (node["transfer"] for node in cluster.datanodes if node["node"] == "dn2")
    (host,) = (host for host in status["reader"]["hosts"] if host["name"] == victim)
    assert host["errors"] + host["suspected"] > 0
    assert (status["requests"]["failed"], status["restarts"]) == (0, 0)
    cluster.restore()
    live.umount()
    stalls = [one["facts"] for one in events_in(tmp_path / "events") if one.get("name") == "stall"]
    assert how == "kill" or {"cause": "datanode", "host": victim} in stalls


def test_the_namenode_dies_and_comes_back(cluster: HdfsInstance, place: Place) -> None:
    """Open files go on; new opens wait, or fail after a short --io-timeout; a worker that dies meanwhile is no loss."""
    place.forgive(REPLACED, AWAY, "lookup: ", "getattr: ", "open: ", "locating blocks")
    live = mount(place, cluster, "--host-timeout", "3s")
    hasty = mount(place, cluster, "--host-timeout", "3s", "--io-timeout", "2s")
    with readers(live, 3, kinds=("pread", "mmap", "direct")) as crowd:
        crowd.get_on()
        cluster.kill("nn")
        for _ in range(3):
            crowd.get_on()
        with pytest.raises(OSError, match="Input/output error"):
            (hasty.path / "file2").read_bytes()
        assert any(
            " WARNING " in line and "NameNode" in line and "listens" in line for line in hasty.log_text().splitlines()
        )
        with checked_copy(live.path / "file3") as waits:
            crowd.get_on()
            assert waits.poll() is None
            live.kill_worker()
            cluster.restart("nn")
            assert outcome(waits) == ""
        crowd.get_on()
        crowd.finish()
    assert live.status()["requests"]["failed"] == 0
    assert live.status()["restarts"] == 1
    with checked_copy(hasty.path / "file2") as copy:
        assert outcome(copy) == ""
    live.umount()
    hasty.umount()


def fetching(live: Live) -> int:
    """The pid of the process that fetches for the worker, once there is one."""

    def look() -> int:
        for task in Path(f"/proc/{live.worker()}/task").iterdir():  # a child is that of the thread that started it
            for child in (task / "children").read_text().split():
                if b"stripefs.store.hdfs.fetch_process" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        return 0

    pid: int = eventually(look, "the process that fetches")
    return pid


def test_the_process_that_fetches_is_killed_and_frozen_under_readers(cluster: HdfsInstance, place: Place) -> None:
    place.forgive(REPLACED, "the process that fetches blocks is gone")
    live = mount(place, cluster, "--fetch-process", "on")
    with readers(live, 4) as crowd:
        crowd.get_on()
        crowd.get_on()  # until it has begun to answer: a process that has not is waited for much longer
        for number in (signal.SIGSTOP, signal.SIGKILL):
            pid = fetching(live)
            os.kill(pid, number)
            crowd.get_on()
            eventually(partial(gone, pid), "the end of that process")
        last, worker = fetching(live), live.kill_worker()
        eventually(partial(gone, last), f"the end of the process that fetches for worker {worker}")
        crowd.get_on()
        crowd.finish()
    assert live.status()["requests"]["failed"] == 0
    live.umount()


def test_a_limit_of_budget_and_150_mib_holds_under_64_readers(cluster: HdfsInstance, place: Place) -> None:
    cgroup = MemoryCgroup((128 + 150) * MIB)
    limits = ("--memory", "128MiB", "--fetch-process", "on")  # its memory counts too
    try:
        live = place.mount(f"{cluster.url}{CONTENTS.root}", *limits, wrapper=cgroup.wrapper)
        assert {live.supervisor, live.worker()} <= set(cgroup.members())
        with readers(live, 64, pause=0.2) as crowd:
            assert not set(cgroup.members()) & set(crowd.pids)
            crowd.get_on()
            crowd.finish()
        status = live.status()
        assert status["reader"]["memory"]["budget"] == 128 * MIB
        assert status["reader"]["memory"]["peak"] <= 128 * MIB
        assert (cgroup.killed(), status["restarts"], status["requests"]["failed"]) == (0, 0, 0)
        live.umount()
    finally:
        place.close()
        cgroup.close()


def test_the_clock_jumps_by_years(cluster: HdfsInstance, place: Place) -> None:
    place.forgive(REPLACED)
    clock = Clock(place)
    live = mount(place, cluster, "--io-timeout", "60s")
    year = 365 * 24 * 3600
    with readers(live, 4) as crowd:
        crowd.get_on()
        for years in (10, -20, 0):
            clock.jump(years * year)
            for _ in range(2):
                crowd.get_on()
            with checked_copy(live.path / "file2") as copy:
                assert outcome(copy) == ""
            reader = live.status()["reader"]
            assert reader["throughput"] >= 0
            assert all(host["avoided_seconds"] == 0 for host in reader["hosts"])
        clock.jump(10 * year)
        live.kill_worker()
        crowd.get_on()
        crowd.finish()
    status = live.status()
    assert (status["requests"]["failed"], status["restarts"], status["reader"]["errors"]) == (0, 1, {})
    first, last = (line for line in live.log_text().splitlines() if "is mounted at" in line or REPLACED in line)
    assert int(last[:4]) - int(first[:4]) in (9, 10)  # so the clock did jump
    live.umount()
