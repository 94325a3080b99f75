"""The parts of `bench container`: what is said to containerd, for which a server answers."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from bench.container.node import Node, at_once, end_node, highest_layer, prepared, service
from bench.container.snapshotters import peers_here
from bench.harness import BenchError
from bench.harness.programs import Start
from imagefs.snapshotter.proto import snapshots_pb2 as wire


class Server(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Takes every call; `refuse` names those that fail."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bytes]] = []
        self.refuse: Callable[[str, int], bool] = lambda method, number: False

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        method = handler_call_details.method.rpartition("/")[2]

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            self.calls.append((method, request))
            if self.refuse(method, sum(one == method for one, _ in self.calls)):
                context.abort(grpc.StatusCode.UNAVAILABLE, "no more today")
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


@contextmanager
def talking(folder: Path) -> Iterator[tuple[Server, Node]]:
    """A node whose containerd is that server."""
    handler = Server()
    server = grpc.server(futures.ThreadPoolExecutor(1), handlers=[handler])
    server.add_insecure_port(f"unix:{folder}/containerd.sock")
    server.start()
    try:
        with grpc.insecure_channel(f"unix:{folder}/containerd.sock") as channel:
            yield handler, Node(folder, "overlayfs", [], channel)
    finally:
        server.stop(None).wait()


def test_a_pull_names_the_image_in_the_first_field_of_the_first_field(tmp_path: Path) -> None:
    short, long = "registry/t:1", "registry/" + "n" * 200
    with talking(tmp_path) as (server, node):
        node.pull(short)
        node.pull(long)
        server.refuse = lambda method, number: True
        with pytest.raises(BenchError, match="overlayfs: registry/t:1 was not pulled: no more today"):
            node.pull(short)
    assert server.calls[0] == ("PullImage", b"\x0a\x0e\x0a\x0c" + short.encode())
    # Lengths of 209 and 212 take two bytes of seven bits each, the lower ones first.
    assert server.calls[1] == ("PullImage", b"\x0a\xd4\x01\x0a\xd1\x01" + long.encode())


def test_snapshots_that_were_prepared_are_removed(tmp_path: Path) -> None:
    with talking(tmp_path) as (server, node):
        assert prepared(node, "sha256:parent") > 0
        made = [wire.PrepareRequest.FromString(one) for method, one in server.calls if method == "Prepare"]
        gone = [wire.KeyRequest.FromString(one) for method, one in server.calls if method == "Remove"]
        assert {one.parent for one in made} == {"sha256:parent"}
        assert [one.key for one in made] == [one.key for one in gone]
        server.calls.clear()
        server.refuse = lambda method, number: method == "Prepare" and number == 3
        with pytest.raises(BenchError, match="Prepare failed: no more today"):
            prepared(node, "sha256:parent")
        assert [method for method, _ in server.calls].count("Remove") == 2


def test_the_highest_layer_is_named_by_its_chain(tmp_path: Path) -> None:
    def store(content: object) -> str:
        data = json.dumps(content).encode()
        digest = hashlib.sha256(data).hexdigest()
        (tmp_path / "blobs/sha256").mkdir(parents=True, exist_ok=True)
        (tmp_path / "blobs/sha256" / digest).write_bytes(data)
        return f"sha256:{digest}"

    config = store({"rootfs": {"diff_ids": ["sha256:a", "sha256:b"]}})
    manifest = store({"config": {"digest": config}})
    named = {"org.opencontainers.image.ref.name": "t"}
    index = {"manifests": [{"digest": "sha256:0"}, {"digest": manifest, "annotations": named}]}
    (tmp_path / "index.json").write_text(json.dumps(index))
    assert highest_layer(tmp_path, "t") == f"sha256:{hashlib.sha256(b'sha256:a sha256:b').hexdigest()}"


class Starts:
    """Containers that are all up at once, or one of them that never is."""

    def __init__(self, *, broken: int = -1) -> None:
        self.most = 0
        self._broken, self._up, self._count = broken, 0, 0
        self._lock = threading.Lock()

    @contextmanager
    def start(self, image: str) -> Iterator[Start]:
        with self._lock:
            self._count += 1
            if self._count == self._broken:
                raise BenchError("out of memory")
            self._up += 1
            self.most = max(self.most, self._up)
        try:
            yield Start(0.0, {}, 0)
        finally:
            with self._lock:
                self._up -= 1


def test_many_at_once_are_up_together() -> None:
    starts = Starts()
    assert at_once(starts, "t") > 0  # type: ignore[arg-type]
    assert starts.most == 20


def test_one_of_many_that_does_not_start_is_told_of() -> None:
    with pytest.raises(BenchError, match="of 20 containers 1 did not start: out of memory"):
        at_once(Starts(broken=7), "t")  # type: ignore[arg-type]


def test_a_service_that_dies_says_its_last_words(tmp_path: Path) -> None:
    dying = [sys.executable, "-c", "raise SystemExit('no such flag')"]
    with (
        pytest.raises(BenchError, match="snapshotter did not start: no such flag"),
        service("snapshotter", dying, tmp_path, {}, tmp_path / "socket"),
    ):
        raise AssertionError("it never answers")


def test_a_node_that_never_was_can_be_ended(tmp_path: Path) -> None:
    end_node(tmp_path / "node")


def test_peers_are_those_whose_programs_are_all_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert peers_here() == []
    for program in ("containerd-stargz-grpc", "ctr-remote", "buildah", "soci"):
        (tmp_path / program).touch(0o755)
    assert [peer.name for peer in peers_here()] == ["stargz"]
