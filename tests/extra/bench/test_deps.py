"""`bench deps` without installing: ratios and disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.deps.measure import Taken, Tally
from bench.deps.plan import derive, ratios, summarize
from bench.harness.results import Document, Key, Ratio, Samples, sum_up
from bench.harness.sizes import size


def test_net_is_without_the_import_from_memory_of_the_same_round() -> None:
    samples = Samples()
    for number, warm in enumerate((2.0, 4.0)):
        samples.add("warm", "installed", number, {"time": warm})
        samples.add("fresh", "imagefs", number, {"time": warm + 1})
        samples.add("fresh", "pip", number, {"time": warm + 20})
        derive(samples, number)
    samples.add("fresh", "pip", 2, {"time": 50.0})
    derive(samples, 2)
    assert samples.get(Key("fresh", "pip", "net")) == {0: 20.0, 1: 20.0}
    found = {ratio.name: ratio for ratio in sum_up(samples, ratios())}
    assert found["hit_fresh_node_vs_pip_net"] == Ratio("hit_fresh_node_vs_pip_net", 0.05, 0.05, 0.05)
    assert "hit_fresh_node_vs_uv_net" not in found


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        ({"uv": 12, "uv:bytecode": 15, "imagefs": 3}, {"hit_fresh_node_vs_uv": 3 / 12}),
        ({"uv": 12, "uv:bytecode": 9, "imagefs": 3}, {"hit_fresh_node_vs_uv": 3 / 9}),
        (
            {"pip": 40, "pip:no_bytecode": 30, "uv": 5, "uv:bytecode": 12, "imagefs:miss": 36, "imagefs:miss_uv": 5.2},
            {
                "miss_vs_plain_install": 36 / 40,
                "miss_vs_plain_install_best": 5.2 / 5,
                "miss_by_pip_vs_plain_install_best": 36 / 5,
            },
        ),
    ],
)
def test_installers_are_taken_in_their_fastest_mode(times: dict[str, float], wanted: dict[str, float]) -> None:
    samples = Samples()
    for system, seconds in times.items():
        samples.add("fresh", system, 0, {"time": seconds, "install": seconds})
    drawn = Document("deps", "0", {})
    summarize(samples, drawn)
    found = {ratio.name: ratio.value for ratio in drawn.ratios}
    assert {name: found[name] for name in wanted} == wanted


def test_disk_counts_what_is_there_once_or_new(tmp_path: Path) -> None:
    store, installed = tmp_path / "store", tmp_path / "installed"
    for folder in (store, installed):
        folder.mkdir()
    (store / "pack").write_bytes(bytes(100))
    (installed / "one").write_bytes(bytes(range(256)))  # LZ4 makes nothing of it
    (installed / "same").hardlink_to(installed / "one")
    tally = Tally(store)
    assert tally.add(installed) == Taken(stored=100, unique=256, installed=256)
    (installed / "two").write_bytes(bytes(range(255, -1, -1)))
    (store / "pack").write_bytes(bytes(150))
    assert tally.add(installed) == Taken(stored=150, unique=512, installed=256 + 512)
    (installed / "link").symlink_to("one")
    assert size(installed) == 512
