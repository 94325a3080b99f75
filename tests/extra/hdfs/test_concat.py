"""Writers that die and loaders of checkpoints, on files of one part after the other."""

from __future__ import annotations

import pytest

from tests.hdfs.test_write_programs import test_writers_and_workers_die_on_hdfs
from tests.integration.loaders.conftest import program
from tests.integration.loaders.test_loaders import (
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
