"""Publications of a writer whose network is cut for up to twice its lease, a small share of the full counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.soak.publications import Context, on_hdfs
from tests.tools.hdfs import HdfsInstance

pytestmark = [pytest.mark.cluster, pytest.mark.root]


def test_no_closed_file_is_lost(fault_hdfs: HdfsInstance) -> None:
    counters: Counter[str] = Counter()
    on_hdfs.play(Context(3, 1.0, print), fault_hdfs, "partitioned", 0, counters)
    assert counters["hdfs_partitioned"] >= on_hdfs.FILES
    assert counters["closed"] > 0
    assert not Path(f"/run/netns/{on_hdfs.Cut(fault_hdfs).name}").exists()
