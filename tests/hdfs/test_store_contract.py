from __future__ import annotations

import pytest

from tests.contract.hdfs import HdfsConformance, briefly

pytestmark = pytest.mark.cluster


class TestAuto(HdfsConformance):
    transport = "auto"


class TestNative(HdfsConformance):
    transport = "native"


@briefly
class TestWebHdfs(HdfsConformance):
    transport = "webhdfs"


@briefly
class TestNativeAlone(HdfsConformance):
    """A cluster whose WebHDFS cannot be reached."""

    transport = "native"
    webhdfs_port = 1
