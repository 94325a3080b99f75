"""A mount of a real HDFS with `--cache`: one load comes from the cluster, the next from local disk."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tests.hdfs.conftest import populated
from tests.support.stores import content
from tests.tools.command import Live, Place, eventually
from tests.tools.hdfs import HdfsInstance
from tests.tools.mounts import sha256

pytestmark = [pytest.mark.cluster, pytest.mark.mount, pytest.mark.root]

MIB = 1 << 20


def test_a_file_that_is_replaced_by_one_of_the_same_length_and_time(
    hdfs: HdfsInstance, place: Place, tmp_path: Path
) -> None:
    place.forgive("reads slower than the store")
    when = 1_700_000_000_000_000_000
    with populated(hdfs, "/cache-replaced", block_size=MIB) as populate:
        for seed in range(3):
            data = content(10 * MIB, seed)
            populate.write(b"/model", data)
            populate.set_times(b"/model", when // 1_000_000)
            mounted = place.mount(f"{hdfs.url}/cache-replaced", "--cache", tmp_path / "cache", "--cache-size", "64GiB")
            for _ in range(2):
                assert sha256(mounted.path / "model") == hashlib.sha256(data).hexdigest()
            assert (mounted.path / "model").stat().st_mtime_ns == when
            settled(mounted)
            mounted.umount()


@pytest.mark.parametrize("layout", ["concat", "striped", "plain"])
def test_what_was_saved_is_loaded_without_a_datanode(
    hdfs: HdfsInstance, place: Place, tmp_path: Path, layout: str
) -> None:
    """By this mount and by the next one, what was appended too."""
    source, data = f"{hdfs.url}/saved-{layout}", content(70 * MIB + 123)
    options = ("--cache", tmp_path / "cache", "--cache-size", "64GiB", "--memory", "1GiB")
    with populated(hdfs, f"/saved-{layout}"):
        first = place.mount(source, "--rw", "--layout", layout, "--cache-writes", *options)
        with (first.path / "model").open("wb") as file:
            for at in range(0, 40 * MIB, MIB):
                file.write(data[at : at + MIB])
            file.flush()
            os.fsync(file.fileno())
            file.write(data[40 * MIB : 50 * MIB])
        with (first.path / "model").open("ab") as file:
            file.write(data[50 * MIB :])
        assert settled(first) == 0
        first.umount()
        second = place.mount(source, *options)
        assert sha256(second.path / "model") == hashlib.sha256(data).hexdigest()
        assert settled(second) == 0
        hosts = {host["name"]: host["bytes"] for host in second.status()["reader"]["hosts"]}
        assert set(hosts) == {"local cache"}
        second.umount()


def settled(live: Live) -> int:
    """Bytes that came from the cluster, once all that was read is on disk."""
    eventually(lambda: not live.status()["cache"]["waiting_bytes"], "what was read to be on disk")
    return int(live.status()["cache"]["missed_bytes"])
