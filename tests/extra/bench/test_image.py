"""`bench image` without a container: ratios, changed files, and what prepares a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.harness import BenchError
from bench.harness.host import host
from bench.harness.results import Ratio, Samples, sum_up
from bench.harness.sizes import digests, lz4_of_new
from bench.image import runtime
from bench.image.plan import Sizes, derive, ratios
from tests.tools.imagefs_daemon import built


def test_the_least_possible_time_follows_the_slower_of_disk_and_link() -> None:
    samples = Samples()
    for number, local in enumerate((0.5, 2.0)):
        samples.add("start_50", "local", number, {"time": local})
        samples.add("start_50", "imagefs", number, {"time": 2.0})
        derive(samples, 50e6, number, Sizes(whole=200_000_000, ahead=50_000_000))
    found = {ratio.name: ratio for ratio in sum_up(samples, ratios())}
    assert found["prefetch_vs_bound_50"] == Ratio("prefetch_vs_bound_50", 1.5, 1.0, 2.0)
    assert found["prefetch_vs_transfer_50"].value == 0.5
    assert "prefetch_vs_bound_20" not in found


def test_only_new_content_counts_as_changed(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "same").write_bytes(b"same" * 1000)
    (old / "moved").write_bytes(b"moved" * 1000)
    (new / "elsewhere").write_bytes(b"moved" * 1000)
    assert lz4_of_new(digests(old), new) == 0
    (new / "fresh").write_bytes(bytes(range(256)))  # LZ4 makes nothing of it
    (new / "copy").write_bytes(bytes(range(256)))
    (new / "link").symlink_to("fresh")
    assert lz4_of_new(digests(old), new) == 256
    (new / "zeros").write_bytes(bytes(300_000))
    known = digests(old)
    assert 256 < lz4_of_new(known, new) < 2000
    assert lz4_of_new(known, new) == 0


@pytest.mark.mount
@pytest.mark.root
@pytest.mark.slow
def test_a_container_is_prepared_and_none_is_started(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (tmp_path / "source").mkdir()
    (tmp_path / "source/text").write_bytes(b"text" * 10_000)
    built(tmp_path / "source", store, "t", {"config": {"Cmd": ["/true"]}})
    assert runtime.published(store, "t").codecs == {"cold": "lz4"}
    with host(tmp_path, drop=False) as machine:
        assert 0 < runtime.prepare_seconds(machine, f"{store}#t", 3) < 60
        assert 0 < runtime.interpreter_seconds(3) < 60
        with pytest.raises(BenchError, match=r"executed no runtime: .*other"):
            runtime.prepare_seconds(machine, f"{store}#other", 1)
