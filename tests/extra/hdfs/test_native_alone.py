"""Stores whose nodes die, where hdfs-native has no WebHDFS beside it."""

from __future__ import annotations

import pytest

from tests.hdfs.faults.test_store_faults import (
    ends,
    populate,
    store,
    test_a_file_changed_before_the_namenode_came_back_is_noticed,
    test_open_files_go_on_without_a_namenode,
)

__all__ = [
    "ends",
    "populate",
    "store",
    "test_a_file_changed_before_the_namenode_came_back_is_noticed",
    "test_open_files_go_on_without_a_namenode",
]

pytestmark = pytest.mark.cluster


@pytest.fixture
def way() -> str:
    return "native alone"
