"""The snapshotter's process by itself, without containerd and without a daemon: its calls, its metrics, its memory."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty
from prometheus_client.parser import text_string_to_metric_families

from imagefs.snapshotter.grpc_service import SERVICE
from imagefs.snapshotter.lazy import MANIFEST
from imagefs.snapshotter.proto import snapshots_pb2 as wire
from imagefs.snapshotter.snapshotter import TARGET
from tests.tools.imagefs_daemon import Service, eventually
from tests.tools.listening import free_port

pytestmark = [pytest.mark.root]

BLOCKING = """
import sys, threading
from imagefs.settings import DaemonSettings, SnapshotterSettings
from imagefs.snapshotter import server

folder = sys.argv[1]
server._ENDS_WITHIN = 0.5
server.Snapshotter.prepare = lambda *_: threading.Event().wait()
chosen = SnapshotterSettings(socket=f"{folder}/socket", root=f"{folder}/root")
sys.exit(server.run(chosen, DaemonSettings(runtime=folder), None, ""))
"""
"""A snapshotter whose Prepares never end."""


class Snapshots:
    """A client of the snapshots service at `path`."""

    def __init__(self, path: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix:{path}")

    def close(self) -> None:
        self._channel.close()

    def call(self, method: str, request: Any, answer: Any = Empty) -> grpc.Future:
        made = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=lambda one: one.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return made.future(request, timeout=60, wait_for_ready=True)

    def prepare(self, key: str, parent: str = "", **labels: str) -> Any:
        request = wire.PrepareRequest(key=key, parent=parent, labels=labels)
        return self.call("Prepare", request, wire.MountsResponse).result()

    def stat(self, key: str) -> Any:
        return self.call("Stat", wire.KeyRequest(key=key), wire.InfoResponse).result().info

    def commit(self, name: str, key: str) -> None:
        self.call("Commit", wire.CommitRequest(name=name, key=key)).result()


class Running:
    """A snapshotter below `folder`, with metrics."""

    def __init__(self, folder: Path) -> None:
        self.metrics = f"127.0.0.1:{free_port()}"
        self.folder, self.socket, self.root = folder, folder / "snapshotter.sock", folder / "root"
        self._service = Service(folder)
        place = ["--socket", str(self.socket), "--root", str(self.root), "--snapshotter-metrics", self.metrics]
        self._process = self._service.start("snapshotter", *place)
        eventually(self._listens, "the snapshotter")

    def close(self) -> None:
        self._process.terminate()
        _, told = self._process.communicate(timeout=60)
        assert self._process.returncode == 0, told

    def page(self, path: str = "/metrics") -> str:
        with urllib.request.urlopen(f"http://{self.metrics}{path}", timeout=60) as answer:
            return str(answer.read().decode())

    def figure(self, name: str, **labels: str) -> float:
        families = text_string_to_metric_families(self.page())
        found = [one.value for family in families for one in family.samples if (one.name, one.labels) == (name, labels)]
        return found[0] if found else 0.0

    def refused(self, *arguments: str) -> str:
        """The message with which another one with these arguments ends."""
        done = self._service.run("snapshotter", *arguments)
        assert done.returncode != 0
        return done.stderr

    def _listens(self) -> bool:
        assert self._process.poll() is None, self._process.communicate()[1]
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with contextlib.closing(Running(tmp_path_factory.mktemp("snapshotter"))) as made:
        yield made


@pytest.fixture
def client(running: Running) -> Iterator[Snapshots]:
    with contextlib.closing(Snapshots(running.socket)) as made:
        yield made


def test_metrics_tell_snapshots_prepares_calls_and_errors(running: Running, client: Snapshots) -> None:
    assert re.search(r'imagefs_snapshotter_build_info\{version="[^"]+"\} 1', running.page())
    keys = [
        ("imagefs_snapshotter_snapshots", {"kind": "active"}),
        ("imagefs_snapshotter_snapshots", {"kind": "committed"}),
        ("imagefs_snapshotter_lazy_snapshots", {"kind": "committed"}),
        ("imagefs_snapshotter_prepares_total", {"result": "ordinary"}),
        ("imagefs_snapshotter_prepares_total", {"result": "fallback"}),
        ("imagefs_snapshotter_rpc_errors_total", {"code": "NOT_FOUND"}),
        ("imagefs_snapshotter_rpc_seconds_count", {"method": "Prepare"}),
    ]
    before = [running.figure(name, **labels) for name, labels in keys]
    client.prepare("extract", **{TARGET: "layer", MANIFEST: "sha256:" + "1" * 64})
    client.commit("layer", "extract")
    client.prepare("container", "layer")
    for _ in range(2):
        with pytest.raises(grpc.RpcError) as raised:
            client.stat("nothing")
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND
    after = [running.figure(name, **labels) for name, labels in keys]
    assert [new - old for old, new in zip(before, after, strict=True)] == [1, 1, 0, 1, 1, 2, 2]
    with pytest.raises(urllib.error.HTTPError, match="404"):
        running.page("/other")


def test_metrics_are_for_this_host_alone(running: Running) -> None:
    place = ["--socket", str(running.folder / "other.sock"), "--root", str(running.folder / "other")]
    assert "loopback" in running.refused(*place, "--snapshotter-metrics", "0.0.0.0:9466")
    assert "cannot be served" in running.refused(*place, "--snapshotter-metrics", running.metrics)


def test_one_snapshotter_has_a_root_and_a_socket(running: Running, client: Snapshots, tmp_path: Path) -> None:
    said = running.refused("--socket", str(tmp_path / "other.sock"), "--root", str(running.root))
    assert f"another snapshotter has the folder {running.root}" in said
    said = running.refused("--socket", str(running.socket), "--root", str(tmp_path / "other"))
    assert "another snapshotter answers" in said
    said = running.refused("--socket", f"{tmp_path}/{'long' * 30}.sock", "--root", str(tmp_path / "other"))
    assert "Traceback" not in said
    client.prepare("still here")


def test_calls_that_wait_hold_up_neither_others_nor_the_end(tmp_path: Path) -> None:
    """Forty containers wait for the layers of their images; containerd's other calls go on, and SIGTERM ends it all."""
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", BLOCKING, str(tmp_path)], stdout=log, stderr=log)
    try:
        with contextlib.closing(Snapshots(tmp_path / "socket")) as client:
            client.call("Cleanup", wire.CleanupRequest()).result()
            waiting = [
                client.call("Prepare", wire.PrepareRequest(key=str(number)), wire.MountsResponse)
                for number in range(40)
            ]
            with pytest.raises(grpc.RpcError, match="no snapshot other"):
                client.stat("other")
            assert not any(one.done() for one in waiting)
            process.terminate()
            assert process.wait(60) == 0, (tmp_path / "log").read_text()
            assert all(one.exception(60) for one in waiting)
        assert not (tmp_path / "socket").exists()
    finally:
        process.kill()
        process.wait()
