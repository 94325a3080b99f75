"""Warnings of the client about the daemon that it has found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from imagefs.daemon.client import Client, Recording
from imagefs.daemon.worker import DaemonBackend
from imagefs.settings import DaemonSettings
from stripefs.settings import StoreSettings


async def test_dependency_snapshots_tell_once_of_options_that_are_not_in_force(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(request: object) -> dict[str, Any]:
        return {"missing": True}

    async def nothing(self: DaemonBackend) -> None:
        pass

    monkeypatch.setattr(DaemonBackend, "_need_cache", nothing)
    running = DaemonSettings(cache_size=1 << 30)
    backend = DaemonBackend(SimpleNamespace(payload=running.to_json()))  # type: ignore[arg-type]
    backend._host = SimpleNamespace(use=use)  # type: ignore[assignment]
    answer = await backend._use({})
    monkeypatch.setattr(Client, "_ask", lambda *_, **__: answer)
    client = Client(DaemonSettings(cache_size=1 << 20), {"cache_size": "cache-size"})
    for _ in range(2):
        assert client.use_above(StoreSettings(url="/s"), "n" * 64, Recording(), timeout=1.0) is None
    assert [one.getMessage() for one in caplog.records if "not in force" in one.getMessage()] == [
        "--cache-size is not in force: the daemon that runs has 1 GiB; imagefs daemon --stop ends it"
    ]
