"""`bench namenode`: its figures from samples, and its program. Its cases are measured in tests/hdfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.harness.results import Samples, sum_up
from bench.namenode.plan import REPORT, ratios
from bench.namenode.program import content, main, name
from tests.extra.bench import documents


def test_calls_of_one_reader_and_of_one_file_have_bounds() -> None:
    samples = Samples()
    samples.add("create", "stripefs", 0, {"calls_per_file": 8.0})
    samples.add("create", "rclone", 0, {"calls_per_file": 4.0})
    samples.add("sequential", "stripefs", 0, {"calls_per_s": 6.0, "calls_per_gb": 20.0})
    found = {one.name: one for one in sum_up(samples, ratios())}
    assert found["create_calls_vs_rclone"].value == 2.0
    lines = REPORT.text(documents.document("namenode", samples.rows(), list(found.values()))).splitlines()
    verdicts = {line.split()[0]: line.split()[-1] for line in lines if line.endswith(("met", "missed"))}
    assert verdicts == {"small_file_create_namenode_calls": "met", "calls_per_s_of_one_reader": "missed"}


def test_the_program_tells_files_that_are_not_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main("create", str(tmp_path), 3, 80)
    main("read", str(tmp_path), 3, 80)
    main("list", str(tmp_path), 3, 80)
    assert capsys.readouterr().out.count('{"time": ') == 3
    (tmp_path / name(1)).write_bytes(content(2, 80))
    with pytest.raises(SystemExit, match="file-00001 does not hold its bytes"):
        main("read", str(tmp_path), 3, 80)
    (tmp_path / name(1)).unlink()
    with pytest.raises(SystemExit, match="does not list its files"):
        main("list", str(tmp_path), 3, 80)
