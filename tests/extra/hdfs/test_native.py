"""Tests of mounts and programs on HDFS, by hdfs-native where others have what is chosen by itself."""

from __future__ import annotations

import pytest

from tests.hdfs.faults.test_faults import (
    cluster,
    filled,
    test_a_datanode_dies_or_freezes,
    test_the_namenode_dies_and_comes_back,
)
from tests.hdfs.test_faults_versions import populate, test_versions_never_mix
from tests.hdfs.test_python import test_forks

__all__ = [
    "cluster",
    "filled",
    "populate",
    "test_a_datanode_dies_or_freezes",
    "test_forks",
    "test_the_namenode_dies_and_comes_back",
    "test_versions_never_mix",
]

pytestmark = [pytest.mark.cluster, pytest.mark.mount, pytest.mark.root]


@pytest.fixture
def transport() -> str:
    return "native"
