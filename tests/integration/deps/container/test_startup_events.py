"""Events about dependencies that a start in a container writes, beside all others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.deps.container.job import SEEN, Job
from tests.support.start_events import events_in, pairs

pytestmark = [pytest.mark.mount, pytest.mark.root]


def test_a_container(job: Job, tmp_path: Path) -> None:
    spool = tmp_path / "events"
    job.service.environment |= {"BOOTSEER_EVENTS": str(spool), "BOOTSEER_RUN": "r7"}
    try:
        assert job.run("--deps-wait") == SEEN
        spans = pairs(events_in(spool))
        parts = [spans[one] for one in (("image", "attach"), ("dependencies", "install"), ("container", "exec"))]
        assert [end["mono_ns"] for _, end in parts] == sorted(end["mono_ns"] for _, end in parts)
        assert len({one["pid"] for one in events_in(spool)}) == 1  # publishing goes on beside the start
        assert job.run() == SEEN
        assert ("dependencies", "mount") in pairs(events_in(spool))
    finally:
        del job.service.environment["BOOTSEER_EVENTS"], job.service.environment["BOOTSEER_RUN"]
    told = [one["name"] for one in events_in(spool) if one["event"] == "instant" and one["stage"] == "dependencies"]
    assert told == ["miss", "hit", "on demand"]  # of the snapshot, which the daemon saw
