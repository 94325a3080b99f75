"""Real HDFS instances, which end with the last test of these folders, and what their tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.imagefs.conftest import nasty_tree
from tests.integration.mount.conftest import mounts
from tests.tools.command import Place
from tests.tools.hdfs import HdfsInstance, hdfs_instance, remove_orphans
from tests.tools.webhdfs import HdfsPopulate, WebHdfs

__all__ = ["_hdfs_to_hurt", "fault_hdfs", "hdfs", "mounts", "nasty_tree", "place", "populated"]


@contextmanager
def populated(instance: HdfsInstance, root: str, **options: int) -> Iterator[HdfsPopulate]:
    """Fills the directory `root`, which is gone in the end."""
    populate = HdfsPopulate(WebHdfs(instance.web), root, **options)
    try:
        yield populate
    finally:
        populate.delete(b"")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """The installed command's mounts; checks afterwards that nothing is left and nothing unexpected was logged."""
    made = Place(tmp_path)
    yield made
    problems = made.close()
    assert not problems, "\n".join(problems)


@pytest.fixture(scope="package")
def hdfs(nothing_left: None) -> Iterator[HdfsInstance]:
    """4 DataNodes without a cap, 1 MiB blocks, replication 1. For tests that hurt nobody."""
    remove_orphans()
    with hdfs_instance("", "--datanodes", "4", "--rate", "0", "--block-size", "1MiB", memory=True) as instance:
        yield instance


@pytest.fixture(scope="package")
def _hdfs_to_hurt(nothing_left: None) -> Iterator[HdfsInstance]:
    remove_orphans()
    options = ("--datanodes", "4", "--rate", "0", "--block-size", "1MiB", "--replication", "2")
    with hdfs_instance("fault", *options, memory=True) as instance:
        yield instance


@pytest.fixture
def fault_hdfs(_hdfs_to_hurt: HdfsInstance) -> Iterator[HdfsInstance]:
    """Like `hdfs` with replication 2; its nodes may be killed and paused. All serve again before the next test."""
    yield _hdfs_to_hurt
    _hdfs_to_hurt.restore()
