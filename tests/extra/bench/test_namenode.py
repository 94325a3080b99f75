"""`bench namenode`: its figures from samples, and its program. Its cases are measured in tests/hdfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.namenode.program import content, main, name


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
