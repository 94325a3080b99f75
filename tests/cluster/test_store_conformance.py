from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from stripefs.errors import NotADirectory, NotFound
from stripefs.settings import StoreSettings
from stripefs.store.hdfs import HdfsStore
from tests.hdfs_instance import HdfsInstance
from tests.store.conformance import StoreConformance
from tests.store.hdfs_places import HdfsPopulate, WebHdfs
from tests.store.listing_conformance import ListingConformance
from tests.store.material import ODD_NAMES, Place
from tests.store.put_conformance import PutConformance
from tests.store.write_conformance import WriteConformance

pytestmark = pytest.mark.cluster


class HdfsReadConformance(ListingConformance, StoreConformance):
    transport: ClassVar[str]
    webhdfs_port: ClassVar[int] = 0
    below_a_file = (NotFound, NotADirectory)  # the NameNode says either, by whether the user is its superuser
    odd_names = (*ODD_NAMES, b"new\nline", b"tab\t", b"\x01\x7f", b"%2F", b"n" * 255)
    many = 150

    @pytest.fixture(scope="class")
    @classmethod
    def place(cls, hdfs: HdfsInstance) -> Iterator[Place]:
        root = f"/conformance-{cls.__name__}"
        populate = HdfsPopulate(WebHdfs(hdfs.web), root)
        settings = StoreSettings(url=hdfs.url + root, transport=cls.transport, webhdfs_port=cls.webhdfs_port)
        store = HdfsStore(settings._replace(hdfs_user="root"))  # hdfs-native makes every user it is given the process's
        yield Place(store, populate)
        store.close()
        populate.delete(b"")


class HdfsConformance(WriteConformance, PutConformance, HdfsReadConformance):
    """What writes is chosen by what reads, but for libhdfs, beside which hdfs-native and WebHDFS write."""


class TestAuto(HdfsConformance):
    transport = "auto"


class TestWebHdfs(HdfsConformance):
    transport = "webhdfs"


class TestNative(HdfsConformance):
    transport = "native"


class TestNativeAlone(HdfsConformance):
    """A cluster whose WebHDFS cannot be reached."""

    transport = "native"
    webhdfs_port = 1
