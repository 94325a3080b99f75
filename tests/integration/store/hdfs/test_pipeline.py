"""DataNodes that give a sign of life, and those that give none."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterable, Iterator

import pytest

from stripefs.errors import HostFailed, NotFound
from stripefs.retry import HostHealth
from stripefs.store.hdfs import pipeline_health
from stripefs.store.hdfs.pipeline_health import PipelineHealth
from stripefs.store.hdfs.wire import Replica
from tests.tools.fake_hdfs import closed_port


class Node:
    """A web port. While it is `frozen` nobody answers; nor on its first `mute` connections."""

    def __init__(self, frozen: bool = False) -> None:
        self.frozen = frozen
        self.mute = self.asked = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def _serve(self) -> None:
        with contextlib.ExitStack() as kept, contextlib.suppress(OSError):
            while True:
                sock = kept.enter_context(self._listener.accept()[0])
                self.asked += 1
                if not self.frozen and self.asked > self.mute:
                    sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


class Cluster:
    """A NameNode and the addresses of DataNodes: `a` and `b` live, `frozen` does not answer."""

    def __init__(self) -> None:
        self.nodes = {"a": Node(), "b": Node(), "frozen": Node(frozen=True)}
        self.blocks: list[dict[str, object]] = []
        self.learnt: list[str] = []

    def ask(self, operation: str, path: str) -> dict[str, object]:
        assert operation == "GET_BLOCK_LOCATIONS"
        if path != "/file":
            raise NotFound(path)
        last = self.blocks[-1] if self.blocks else None
        return {"LocatedBlocks": {"locatedBlocks": self.blocks, "lastLocatedBlock": last}}

    def begin(self, *names: str) -> None:
        replicas = [{"name": name, "ipAddr": "127.0.0.1", "hostName": "localhost", "infoPort": 1} for name in names]
        self.blocks.append({"locations": replicas})

    def learn(self, replicas: Iterable[Replica]) -> None:
        self.learnt += [replica.name for replica in replicas]

    def address(self, name: str) -> str:
        if name == "down":
            return closed_port()
        if name not in self.nodes:
            raise HostFailed("no web port", host=name)
        return self.nodes[name].address


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    for node in made.nodes.values():
        node.close()


@pytest.fixture
def pipelines(cluster: Cluster) -> Iterator[PipelineHealth]:
    made = PipelineHealth(cluster, cluster, HostHealth(), 0.3)  # type: ignore[arg-type]  # its calls of a NameNode
    yield made
    made.close()


def test_the_silent_one_of_a_pipeline_is_found(cluster: Cluster, pipelines: PipelineHealth) -> None:
    cluster.begin("a", "frozen")
    assert pipelines.of("/file") == (1, ("a", "frozen"))
    assert pipelines.silent_hosts("/file", "a") == ["frozen"]
    assert cluster.learnt == ["a", "frozen", "a", "frozen"]
    assert pipelines.any_silent
    assert pipelines.silent(["a", "b", "frozen"]) == ["frozen"]


def test_a_file_that_was_not_even_made(cluster: Cluster, pipelines: PipelineHealth) -> None:
    assert pipelines.of("/none") == (0, ())
    assert pipelines.of("/file") == (0, ())
    assert pipelines.silent_hosts("/none", "a") == []
    assert pipelines.silent_hosts("/none", "frozen") == ["frozen"]


def test_who_cannot_be_asked_is_not_silent(cluster: Cluster, pipelines: PipelineHealth) -> None:
    cluster.begin("a", "https only", "down")
    assert pipelines.silent_hosts("/file", "a") == []


def test_one_that_lives_again(cluster: Cluster, pipelines: PipelineHealth, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pipelines.silent_hosts("/file", "frozen") == ["frozen"]
    cluster.nodes["frozen"].frozen = False
    asked = cluster.nodes["frozen"].asked
    assert pipelines.silent(["frozen"]) == ["frozen"]
    assert cluster.nodes["frozen"].asked == asked
    monkeypatch.setattr(pipeline_health, "_TRUSTED", 0.0)
    assert pipelines.silent(["frozen"]) == []
    assert not pipelines.any_silent


def test_a_thread_that_hangs_is_no_silent_datanode(cluster: Cluster, pipelines: PipelineHealth) -> None:
    """The first connections to one that lives are never answered."""
    cluster.nodes["a"].mute = pipeline_health._PROBES - 1
    assert pipelines.silent_hosts("/file", "a") == []
    assert cluster.nodes["a"].asked == pipeline_health._PROBES


def test_what_is_laid_aside_is_closed_in_time(pipelines: PipelineHealth, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    pipelines.close_later(ours)
    assert ours.fileno() >= 0
    monkeypatch.setattr(pipeline_health, "_CLOSED_AFTER", 0.0)
    other, another = socket.socketpair()
    pipelines.close_later(other)
    assert other.fileno() < 0
    assert ours.fileno() >= 0
    pipelines.close()
    assert ours.fileno() < 0
    for sock in (theirs, another):
        sock.close()
