"""Copies of a tree to HDFS and back in the layouts that tests/hdfs leaves out."""

from __future__ import annotations

import pytest

from tests.hdfs.test_copy import source, test_there_and_back

__all__ = ["source", "test_there_and_back"]

pytestmark = [pytest.mark.cluster, pytest.mark.mount, pytest.mark.root]


@pytest.fixture(params=["plain", "concat"])
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)
