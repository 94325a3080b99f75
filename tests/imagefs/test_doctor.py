"""`imagefs doctor` on this machine: the kernel is tried, nothing stays, and the daemon that runs is found."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefs.doctor.trial import TRIALS
from stripefs.mount import kernel
from tests.imagefs.service import Service, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    try:
        yield made
    finally:
        made.close()


def examined(service: Service, *arguments: str) -> dict[str, str]:
    """The states that the command finds; containerd's own configuration is left out."""
    told = service.ok("doctor", "--json", "--containerd-config", str(service.folder / "none"), *arguments)
    return {one["check"]: one["state"] for one in json.loads(told)["findings"]}


def test_the_kernel_is_tried_and_nothing_stays(service: Service, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    found = examined(service, str(tmp_path / "store"))
    tried = {f"kernel.{name}" for name in TRIALS if name != "erofs-loop"}  # which is there for older kernels
    assert {name: found[name] for name in tried} == dict.fromkeys(tried, "ok")
    assert found["daemon.running"] == "warn"
    assert {name: state for name, state in found.items() if name.startswith("store")} == {
        "store.list": "ok",
        "store.read": "ok",
        "store.write": "ok",
        "store.clock": "ok",
    }
    assert os.listdir(service.settings.cache) == os.listdir(tmp_path / "store") == []
    assert [mount.path for mount in kernel.mounts() if mount.path.startswith(str(tmp_path))] == []


def test_the_daemon_that_runs_is_found(service: Service) -> None:
    service.start("daemon")
    eventually(service.answers, "the daemon")
    found = examined(service)
    assert (found["daemon.running"], found["daemon.version"]) == ("ok", "ok")
    assert "daemon.namespace" not in found
