"""`bench container`: the layer that it prepares, and containers that are started at once."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.container.node import at_once, highest_layer
from bench.harness import BenchError
from bench.harness.programs import Start


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
