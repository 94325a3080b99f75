"""The whole suites of stores for the transports of which other tests run a part."""

from __future__ import annotations

import pytest

from tests.contract.hdfs import HdfsConformance, HdfsReadConformance, libhdfs_environment

__all__ = ["libhdfs_environment"]

pytestmark = pytest.mark.cluster


class TestWebHdfs(HdfsConformance):
    transport = "webhdfs"


class TestNativeAlone(HdfsConformance):
    """A cluster whose WebHDFS cannot be reached."""

    transport = "native"
    webhdfs_port = 1


@pytest.mark.usefixtures("libhdfs_environment")
class TestLibhdfs(HdfsReadConformance):
    transport = "libhdfs"


@pytest.mark.usefixtures("libhdfs_environment")
class TestLibhdfsAlone(HdfsReadConformance):
    """A cluster whose WebHDFS cannot be reached: metadata come from hdfs-native."""

    transport = "libhdfs"
    webhdfs_port = 1
