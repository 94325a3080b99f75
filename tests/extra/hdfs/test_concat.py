"""Writers that die and loaders of checkpoints, on files of one part after the other."""

from __future__ import annotations

import pytest

from tests.cluster.test_write_programs_hdfs import test_writers_and_workers_die_on_hdfs
from tests.loaders.conftest import program
from tests.loaders.test_loaders import (
    test_libraries_save_and_load_through_a_mount,
    test_libraries_save_and_load_without_a_mount,
)

__all__ = [
    "program",
    "test_libraries_save_and_load_through_a_mount",
    "test_libraries_save_and_load_without_a_mount",
    "test_writers_and_workers_die_on_hdfs",
]

pytestmark = [pytest.mark.cluster, pytest.mark.mount, pytest.mark.root]


@pytest.fixture
def layout() -> str:
    return "concat"
