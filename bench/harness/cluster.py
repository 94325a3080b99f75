"""The HDFS that is measured: an instance of `./scripts/hdfs-cluster` with the benchmark's files on it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bench.harness import ROOT, BenchError, Say
from bench.harness.data import MIB, DataFile, Extent, contents
from bench.harness.environment import packages
from bench.harness.peers import RCLONE_VERSION
from bench.harness.processes import cpu_seconds
from bench.harness.programs import last_line, wait_until

__all__ = ["CAPPED", "HADOOP", "Cluster", "DataNode", "running"]

CAPPED = 40e6  # bytes a second of each DataNode, as most is measured
HADOOP = "3.4.2"

_SCRIPT = ROOT / "scripts" / "hdfs-cluster"
_WRITERS = 3  # two cores; more only wait for each other
_SEGMENT = 128 << 20  # whole blocks of both sizes in use
_ATTEMPTS = 5
_HEADERS = 14 + 20 + 32  # bytes of a packet: Ethernet, IP, TCP with time stamps
_LIVE_WITHIN = 60.0  # seconds for a resumed DataNode to send its heartbeat


@dataclass(frozen=True, slots=True)
class DataNode:
    """Addresses are ip:port; `transfer` is how block locations name it."""

    name: str
    pid: int
    transfer: str
    http: str


class Cluster:
    """A running instance. `url` is hdfs://ip:port, `conf` a folder of site files for clients."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.name: str = facts["name"]
        self.url: str = facts["url"]
        self.conf: str = facts["conf"]
        self.rate: float = float(facts["rate"])
        self.router = f"hdfs-{self.name}-nn"
        """The network namespace that joins DataNodes and clients."""
        self._http: str = facts["http"]
        self.datanodes = [DataNode(d["node"], d["pid"], d["transfer"], d["http"]) for d in facts["datanodes"]]

    @property
    def network(self) -> str:
        """Addresses of all its nodes, as ADDRESS/LENGTH."""
        address = self._http.partition(":")[0]
        return str(IPv4Network(f"{address}/24", strict=False))

    def facts(self, size: int, rclone: Path | None) -> dict[str, Any]:
        """For documents, files being of `size` bytes: in MiB and MB/s. rclone: its binary, if it is measured."""
        return {
            "packages": packages(),
            "hadoop": HADOOP,
            "rclone": RCLONE_VERSION if rclone else None,
            "datanodes": len(self.datanodes),
            "rate_mb_s": CAPPED / 1e6,
            "file_mib": size // MIB,
        }

    def command(self, *arguments: str) -> str:
        return _command(arguments[0], "--name", self.name, *arguments[1:])

    def set_rate(self, rate: float) -> None:
        """Cap each DataNode at `rate` bytes a second and direction, 0 for no cap."""
        self.command("rate", f"{rate / 1e6:g}")
        self.rate = rate

    def locate(self, path: str) -> list[Extent]:
        """The blocks of a file with the transfer addresses of their DataNodes."""
        query = "op=GETFILEBLOCKLOCATIONS&user.name=root&offset=0&length=9223372036854775807"
        answer = self._ask(f"webhdfs/v1{quote(path)}?{query}")
        blocks = answer["BlockLocations"]["BlockLocation"]
        return [Extent(int(b["offset"]), int(b["length"]), tuple(b["names"])) for b in blocks]

    def write(self, files: Sequence[DataFile], say: Say) -> None:
        """Make those of these files that are not there yet.

        Each is written in segments, a few at once, that the NameNode then joins without moving a byte: hdfs-native
        gives up a file when the NameNode has not heard of its last block yet, which a busy machine brings about, and
        so only a segment has to be written again.
        """
        files = [file for file in files if not self._has(file)]
        jobs = [(file, begin) for file in files for begin in range(0, file.size, _SEGMENT)]
        with ThreadPoolExecutor(_WRITERS) as pool:
            names = list(pool.map(lambda job: self._write_segment(*job), jobs))
        for file in files:
            parts = [name for (owner, _), name in zip(jobs, names, strict=True) if owner is file]
            self._join(file, parts)
            say(f"wrote {file.path}: {file.size >> 20} MiB")
        os.sync()  # dirty pages stay when caches are dropped

    def datanode_cpu(self) -> float:
        """User and system seconds that all DataNodes have used so far."""
        return sum(cpu_seconds(node.pid) for node in self.datanodes)

    def namenode_calls(self) -> int:
        """Operations that the NameNode has counted so far, its TotalFileOps: up to a second old."""
        (activity,) = self._ask("jmx?qry=Hadoop:service=NameNode,name=NameNodeActivity")["beans"]
        return int(activity["TotalFileOps"])

    def bytes_sent(self) -> int:
        """Bytes that all DataNodes have sent so far, headers included."""
        return sum(sent for sent, _ in self._links())

    def payload_sent(self) -> int:
        """The same without the headers of Ethernet, IP and TCP: what readers asked for, and what HDFS adds to it."""
        return sum(sent - packets * _HEADERS for sent, packets in self._links())

    def _links(self) -> Iterator[tuple[int, int]]:
        """Bytes and packets that each link of a DataNode has sent: a process shows the counters of its namespace."""
        for node in self.datanodes:
            lines = Path(f"/proc/{node.pid}/net/dev").read_text().splitlines()[2:]
            links = {name.strip(): counts.split() for name, _, counts in (line.partition(":") for line in lines)}
            for name, counts in links.items():
                if name != "lo":
                    yield int(counts[8]), int(counts[9])

    def pause(self, node: DataNode) -> None:
        """Freeze a DataNode at once: its connections stay and nothing answers."""
        os.kill(node.pid, signal.SIGSTOP)

    def resume(self, node: DataNode) -> None:
        """Let a frozen DataNode go on and wait until the NameNode counts all as live again."""
        os.kill(node.pid, signal.SIGCONT)
        failure = f"a DataNode of {self.name} did not come back (see its log in the instance's folder)"
        wait_until(lambda: json.loads(self.command("status", "--json"))["ready"], _LIVE_WITHIN, failure, 0.5)

    def status(self, path: str) -> dict[str, Any] | None:
        """The NameNode's FileStatus of a path, None where nothing is there."""
        try:
            found: dict[str, Any] = self._ask(f"webhdfs/v1{quote(path)}?op=GETFILESTATUS&user.name=root")["FileStatus"]
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise
        return found

    def remove(self, path: str) -> None:
        """Delete a file, or a directory with all that is in it; nothing need be there."""
        query = "op=DELETE&recursive=true&user.name=root"
        request = urllib.request.Request(f"http://{self._http}/webhdfs/v1{quote(path)}?{query}", method="DELETE")
        urllib.request.urlopen(request, timeout=30).close()

    def contents(self, path: str) -> bytes:
        """All of a small file, as it lies in HDFS."""
        query = "op=OPEN&user.name=root"
        with urllib.request.urlopen(f"http://{self._http}/webhdfs/v1{quote(path)}?{query}", timeout=30) as answer:
            data: bytes = answer.read()
        return data

    def _has(self, file: DataFile) -> bool:
        found = self.status(file.path)
        if found is None:
            return False
        wanted = (file.size, file.block_size, file.replication)
        return (found["length"], found["blockSize"], found["replication"]) == wanted

    def _write_segment(self, file: DataFile, begin: int) -> str:
        """Write up to _SEGMENT bytes of `file` from `begin` into a file of their own and return its path."""
        from hdfs_native import Client, WriteOptions

        options = WriteOptions(block_size=file.block_size, replication=file.replication, create_parent=True)
        client = Client(self.url)
        failure: RuntimeError | None = None
        for attempt in range(_ATTEMPTS):
            path = f"{file.path}.parts/{begin:020}-{attempt}"
            try:
                writer = client.create(path, options)
                for chunk in contents(file, begin, min(file.size, begin + _SEGMENT)):
                    writer.write(chunk)
                writer.close()
                return path
            except RuntimeError as error:  # hdfs-native's NotReplicatedYet
                client.delete(path)
                failure = error
        raise BenchError(f"writing {file.path} failed {_ATTEMPTS} times: {failure}") from failure

    def _join(self, file: DataFile, parts: Sequence[str]) -> None:
        """CONCAT `parts` and give the result the name of `file`."""
        from hdfs_native import Client

        if parts[1:]:
            query = f"op=CONCAT&user.name=root&sources={quote(','.join(parts[1:]), safe='')}"
            request = urllib.request.Request(f"http://{self._http}/webhdfs/v1{parts[0]}?{query}", method="POST")
            urllib.request.urlopen(request, timeout=30).close()
        client = Client(self.url)
        client.rename(parts[0], file.path, overwrite=True)
        client.delete(f"{file.path}.parts", recursive=True)

    def _ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self._http}/{path}", timeout=30) as answer:
            return json.load(answer)


@contextmanager
def running(name: str, say: Say, *, keep: bool = False, datanodes: int = 8) -> Iterator[Cluster]:
    """An instance of so many DataNodes: one that is running already, which stays, else a fresh one.

    A fresh one is removed when the block ends, unless it is to be kept.
    """
    facts = _running_facts(name, datanodes)
    if facts is not None:
        say(f"using the HDFS instance {name}, which is running")
        yield Cluster(facts)
        return
    say(f"starting the HDFS instance {name}")
    facts = json.loads(_command("start", "--name", name, "--datanodes", str(datanodes), "--rate", "0", "--json"))
    try:
        yield Cluster(facts)
    finally:
        if keep:
            say(f"leaving the HDFS instance {name}: ./scripts/hdfs-cluster stop --name {name}")
        else:
            say(f"removing the HDFS instance {name}")
            _command("stop", "--name", name)


def _running_facts(name: str, datanodes: int) -> dict[str, Any] | None:
    try:
        facts: dict[str, Any] = json.loads(_command("status", "--name", name, "--json"))
    except BenchError:
        return None
    return facts if facts["ready"] and len(facts["datanodes"]) == datanodes else None


def _command(*arguments: str) -> str:
    done = subprocess.run([_SCRIPT, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"hdfs-cluster {arguments[0]} failed: {last_line(done.stderr)}")
    return done.stdout
