"""A real HDFS for tests: `./scripts/hdfs-cluster` as a Python object.

Instances are named `test-PID` or `test-PID-WORD` after the pytest that owns them, so that what a killed run left
behind can be told from what a living one needs.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.checkout import CHECKOUT
from tests.support.memory import MEMORY, in_memory

__all__ = ["COMMAND", "HdfsInstance", "hdfs_instance", "remove_orphans"]

COMMAND = CHECKOUT / "scripts" / "hdfs-cluster"
_STATE = "bootseer-hdfs-"


class HdfsInstance:
    """A running instance: `url` is hdfs://HOST:PORT, `web` the NameNode's HTTP HOST:PORT, `conf` a --hadoop-conf."""

    def __init__(self, name: str, facts: dict[str, Any]) -> None:
        self.name = name
        self.url: str = facts["url"]
        self.rpc: str = facts["namenode"]["rpc"]
        self.web: str = facts["http"]
        self.conf = Path(facts["conf"])
        self.state = Path(facts["state"])
        self.block_size: int = facts["block_size"]
        self.replication: int = facts["replication"]
        self._rate: int = facts["rate"]
        self.datanodes: list[dict[str, Any]] = facts["datanodes"]
        """Each with node (its name), pid, address, transfer, http and ipc (ADDRESS:PORT), namespace and log."""

    def status(self) -> dict[str, Any]:
        """The current answer of `hdfs-cluster status --json`."""
        facts: dict[str, Any] = json.loads(self._run("status", "--json"))
        return facts

    def node_at(self, address: str) -> str:
        """The name of the DataNode whose address, or ADDRESS:PORT of any purpose, this is."""
        for facts in self.datanodes:
            if facts["address"] == address.partition(":")[0]:
                return str(facts["node"])
        raise KeyError(address)

    def kill(self, *nodes: str) -> None:
        self._run("kill", *nodes)

    def pause(self, *nodes: str) -> None:
        self._run("pause", *nodes)

    def resume(self, *nodes: str) -> None:
        self._run("resume", *nodes)

    def restart(self, *nodes: str) -> None:
        self._run("restart", *nodes)

    def wait(self) -> None:
        self._run("wait")

    def set_rate(self, megabytes: float) -> None:
        """MB/s of each DataNode; 0 lifts the cap."""
        self._run("rate", str(megabytes))

    def safemode(self, on: bool) -> None:
        """Let the NameNode refuse changes, or take them again."""
        self._run("safemode", "on" if on else "off")

    def make_active(self, node: str) -> None:
        """Make this NameNode of two the active one."""
        self._run("active", node)

    def bytes_sent(self) -> dict[str, int]:
        """Bytes each DataNode has put on its link, by node."""
        return {node: counts["sent"] for node, counts in json.loads(self._run("report-bytes")).items()}

    def restore(self) -> None:
        """Resume what is paused, restart what is dead, and wait until everything serves again, as fast as at first."""
        facts = self.status()
        if facts["rate"] != self._rate:
            self.set_rate(self._rate / 1e6)
        nodes = [facts["namenode"], *facts["datanodes"]]
        paused = [node["node"] for node in nodes if node["state"] == "paused"]
        dead = [node["node"] for node in nodes if node["state"] == "dead"]
        if facts["safemode"] and not paused and not dead:  # which it does not leave by itself when it was told to enter
            self.safemode(False)
        if paused:
            self.resume(*paused)
        if dead:
            self.restart(*dead)
        if paused or not facts["ready"]:
            self.wait()

    def stop(self) -> None:
        self._run("stop")

    def _run(self, *arguments: str) -> str:
        return _run(*arguments, "--name", self.name, "--state", str(self.state))


@contextmanager
def hdfs_instance(word: str = "", *options: str, memory: bool = False) -> Iterator[HdfsInstance]:
    """A fresh instance started with `options`, gone at the end. `word` tells apart several of one pytest.

    memory: its files are there if there is room: a NameNode calls fsync for each change, and all tests wait for that.
    """
    name = f"test-{os.getpid()}" + (f"-{word}" if word else "")
    state = in_memory(f"{_STATE}{name}") if memory else None
    where = ["--name", name, *(["--state", str(state)] if state else [])]
    stop = partial(_run, "stop", *where)
    atexit.register(stop)  # for a pytest that ends without tearing its fixtures down
    try:
        yield HdfsInstance(name, json.loads(_run("start", "--json", *where, *options)))
    finally:
        stop()
        atexit.unregister(stop)


def remove_orphans() -> None:
    """Stop the instances of test runs that are no longer there."""
    names = {entry.name.removesuffix("-nn") for entry in Path("/run/netns").glob("hdfs-test-*-nn")}
    for name in {name.removeprefix("hdfs-") for name in names}:
        owner = re.match(r"test-(\d+)", name)
        if owner and not Path("/proc", owner[1]).exists():
            state = MEMORY / f"{_STATE}{name}"
            _run("stop", "--name", name, *(["--state", str(state)] if state.exists() else []))


def _run(*arguments: str) -> str:
    # The programs of COMMAND, without its look at the machine, which `./scripts/test` has had.
    command = [sys.executable, "-P", "-S", "-m", "hdfscluster", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(COMMAND.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"hdfs-cluster {' '.join(arguments)}: {done.stderr.strip()}"
    return done.stdout
