"""The suites of stores for HDFS, by its transports: in full, or the tests of what depends on a transport."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import ClassVar

import pytest

from stripefs.errors import NotADirectory, NotFound, StoreError
from stripefs.settings import StoreSettings
from stripefs.store.hdfs.store import HdfsStore
from tests.contract.listing import ListingConformance
from tests.contract.putting import PutConformance
from tests.contract.reading import StoreConformance
from tests.contract.writing import WriteConformance
from tests.support.checkout import CHECKOUT
from tests.support.stores import ODD_NAMES, Place
from tests.tools.hdfs import HdfsInstance
from tests.tools.webhdfs import HdfsPopulate, WebHdfs

__all__ = ["HdfsConformance", "HdfsReadConformance", "briefly", "libhdfs_environment"]

SCRIPTS = CHECKOUT / "scripts"

_BRIEF = frozenset((
    *("test_missing", "test_odd_names", "test_listing_is_in_byte_order_and_whole", "test_expecting_another_version"),
    *("test_a_file_as_a_whole", "test_any_range_is_exact", "test_many_threads_on_one_handle", "test_a_cancelled_read"),
    *("test_a_change_under_an_open_handle", "test_close_while_reading", "test_hosts_serve_what_they_are_said_to_hold"),
    *("test_a_read_of_a_small_file", "test_reads_of_several_small_files"),
    "test_a_document",
    *("test_a_file_written_in_pieces", "test_an_aborted_file_is_gone", "test_one_of_many_wins", "test_joined_files"),
))  # fmt: skip
"""Tests of what a transport does itself: names on the wire, reads and their ends, versions, writes."""


def briefly(suite: type) -> type:
    """The suite without the tests whose outcome another transport tells as well. tests/extra runs them all."""
    for name in dir(suite):
        if name.startswith("test_") and name not in _BRIEF:
            setattr(suite, name, None)
    return suite


@pytest.fixture(scope="session")
def libhdfs_environment() -> Iterator[None]:
    built = subprocess.run([SCRIPTS / "build-libhdfs"], capture_output=True, text=True, check=False)
    if built.returncode == 77:
        pytest.skip(built.stderr.strip())
    assert built.returncode == 0, built.stderr
    jars = subprocess.run([SCRIPTS / "hdfs-cluster", "jars"], capture_output=True, text=True, check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARROW_LIBHDFS_DIR", built.stdout.strip())
        patch.setenv("CLASSPATH", f"{jars.stdout.strip()}/*")
        patch.setenv("LIBHDFS_OPTS", "-Xmx256m -XX:+UseSerialGC")
        yield


class HdfsReadConformance(ListingConformance, StoreConformance):
    transport: ClassVar[str]
    webhdfs_port: ClassVar[int] = 0
    # The NameNode says either, by whether the user is its superuser.
    below_a_file: ClassVar[tuple[type[StoreError], ...]] = (NotFound, NotADirectory)
    odd_names = (
        *(*ODD_NAMES, b"new\nline", b"tab\t", b"\x01\x7f", b"%2F", b"(1)<2>|3|$!@^", b"n" * 255),
        *("e\N{COMBINING ACUTE ACCENT} is not é".encode(), "עברית".encode()),
    )
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
    """The reading transport decides which one writes, but for libhdfs, beside which hdfs-native and WebHDFS write."""
