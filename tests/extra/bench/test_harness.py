"""The harness of benchmarks: rounds, results in the docs, limits of memory, network namespaces."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.cli import with_results
from bench.harness import BenchError, netns
from bench.harness.mounts import memory_limit
from bench.harness.programs import output
from bench.harness.results import Key, RatioPlan, Row, summary
from bench.harness.rounds import Options, Rounds
from tests.extra.bench import documents

MIB = 1 << 20
RATIOS = [RatioPlan("ours_vs_other", Key("case", "ours", "time"), Key("case", "other", "time"), 0.5)]
COMPILED = documents.document("compile", [Row("start", "hit", "time", "s", 2.0, 1.9, 2.1, 2)], date="2026-11-25")


def fails(_rounds: Rounds) -> None:
    raise BenchError("out of disk")


def test_rounds_keep_a_document_of_what_went_well_and_note_what_did_not() -> None:
    kept: list[str] = []
    said: list[str] = []
    rounds = Rounds.begin(
        "x", Options(quick=True), {"link": "fast"}, summary(RATIOS), said.append, lambda one: kept.append(one.to_json())
    )
    assert rounds.rounds == 2
    for number in range(2):
        rounds.take("case", "ours", number, lambda: {"time": 1.0})
        rounds.take("case", "other", number, lambda: {"time": 4.0})
    assert not rounds.attempt("disk", fails)
    assert not rounds.attempt("disk", fails)  # not again
    rounds.keep()
    document = rounds.document
    assert [(ratio.name, ratio.value) for ratio in document.ratios] == [("ours_vs_other", 0.25)]
    assert document.notes == ["disk: out of disk"]
    assert {"date", "cpus", "load_15min"} < document.environment.keys()
    assert (document.environment["link"], document.environment["rounds"], document.environment["quick"]) == (
        "fast",
        2,
        True,
    )
    assert kept == [document.to_json()]
    assert "round 2/2  case               other                      4.00 s" in said


def test_results_go_to_their_places_and_leave_those_without_any(tmp_path: Path) -> None:
    page = "".join(
        f"<!-- results of {name} -->\nold\n<!-- end of results of {name} -->\n" for name in ("compile", "read")
    )
    (tmp_path / "compile.json").write_text(COMPILED.to_json())
    made = with_results(page, tmp_path)
    assert "Version 0.1.0, 2026-11-25; TorchInductor" in made
    assert "| start | hit | 2.00 |" in made
    assert "<!-- results of read -->\nold\n" in made
    assert with_results(made, tmp_path) == made


@pytest.mark.root
def test_a_program_that_takes_more_memory_than_its_limit_is_killed() -> None:
    takes = [sys.executable, "-c", f"held = b'x' * {128 * MIB}"]
    with memory_limit(64 * MIB) as bounded:
        assert subprocess.run([*bounded, *takes], check=False).returncode == -9
    with memory_limit(256 * MIB) as bounded:
        subprocess.run([*bounded, *takes], check=True)
    with memory_limit(0) as bounded:
        assert bounded == []
    assert not list(Path("/sys/fs/cgroup").glob("**/bench-*"))


@pytest.mark.root
def test_namespaces_are_joined_and_removed_with_what_runs_there() -> None:
    prefix = "bench-test-"
    one, other = f"{prefix}1", f"{prefix}2"
    netns.remove(prefix)
    try:
        for name in (one, other):
            netns.add(name)
        netns.veth(one, "left", other, "right")
        netns.bring_up(one, "left", "198.19.252.1/30")
        netns.bring_up(other, "right", "198.19.252.2/30")
        netns.set_rate(one, "left", 1e6)
        assert "tbf" in output("tc", "-netns", one, "qdisc", "show", "dev", "left")
        assert "198.19.252.2" in output("ip", "-n", other, "address", "show", "right")
        sleeping = subprocess.Popen(["nsenter", f"--net=/run/netns/{one}", "sleep", "60"])
    finally:
        netns.remove(prefix)
    assert sleeping.wait(10) == -9
    assert prefix not in output("ip", "netns", "list")
