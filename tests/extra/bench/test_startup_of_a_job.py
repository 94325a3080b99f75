"""A job from the request to its first step, with every part real, as `./scripts/bench startup --quick` measures it."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest

from bench.cli import main
from bench.harness.link import Link, Measured
from bench.harness.programs import output
from bench.harness.results import load
from bench.startup.plan import CASE, FLEET

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.cluster]


@pytest.mark.timeout(600)
def test_a_job_starts_by_each_way_and_on_two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry, containerd, pip, uv, imagefs, stripefs and HDFS take part. A job that loads other bytes than were
    written is a note of the document. Nothing of it is left. Two nodes start together; the benchmark has four, empties
    the machine's caches before each start, which would take them from other tests too, and insists on its link, which
    other tests keep from what it should do."""

    def measured(link: Link, rate: float) -> Measured:
        link.set_rate(rate)
        return link._measure(rate)

    monkeypatch.setattr(Link, "measure", measured)
    monkeypatch.setattr("bench.startup.measure.NODES", 2)
    emptied: list[None] = []
    monkeypatch.setattr("bench.startup.measure.cold", lambda: emptied.append(None))
    instance = f"test-{os.getpid()}-startup"
    file = tmp_path / "startup.json"
    systems = ["all", "all:again", "by_hand", "today"]
    words = [word for name in (*systems, FLEET) for word in ("--only", name)]
    with tempfile.TemporaryDirectory(prefix="startup-") as work:  # a short path: sockets of containerd lie below it
        where = ["--work", work, "--name", instance, "--json", str(file)]
        assert main(["startup", "--quick", *words, *where]) == 0
    document = load(file)
    assert document.notes == []
    assert len(emptied) == len(systems) + 1
    assert {(row.case, row.system) for row in document.rows} == {
        *((CASE, system) for system in systems),
        (FLEET, "all"),
    }
    assert {ratio.name for ratio in document.ratios} >= {"total_vs_today", "total_vs_best_by_hand"}
    warmed = document.row(CASE, "all", "overlapped")
    assert warmed is not None
    assert warmed.median > 0
    assert work not in Path("/proc/self/mounts").read_text()
    assert not re.search(rf"{instance}|bench-", output("ip", "netns", "list"))
