"""`imagefs startup collect` into a real HDFS."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.hdfs import HdfsInstance
from tests.unit.imagefs.startup.collecting import collected_anew

pytestmark = [pytest.mark.cluster, pytest.mark.root]


def test_hdfs_holds_what_many_passes_brought(tmp_path: Path, hdfs: HdfsInstance) -> None:
    collected_anew(tmp_path, f"{hdfs.url}/startup-events")
