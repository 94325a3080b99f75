"""Nodes and workers that die in random order while files are read."""

from __future__ import annotations

import pytest

from tests.hdfs.faults.test_faults import CONTENTS, cluster, filled
from tests.soak.engine import make_plan, soak
from tests.tools.command import Place
from tests.tools.hdfs import HdfsInstance

__all__ = ["cluster", "filled"]

pytestmark = [pytest.mark.cluster, pytest.mark.mount, pytest.mark.root]

SEED = 16  # its five kills: three workers, a DataNode killed, a DataNode paused


def test_five_random_kills(cluster: HdfsInstance, place: Place) -> None:
    """`./scripts/soak` in small."""
    nodes = [node["node"] for node in cluster.datanodes]
    plan = make_plan(SEED, 5, nodes, 1.0)
    assert {kill.kind for kill in plan} == {"worker", "kill", "pause"}
    summary = soak(place, cluster, CONTENTS, plan, seed=SEED, readers=8, say=print)
    assert summary["reads"] > 0
