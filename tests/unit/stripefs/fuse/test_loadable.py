"""Reasons why the program of the next worker cannot be loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from stripefs.fuse.supervised import why_not_loaded


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", ""),
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("raise ImportError('it is of another version\\n\\n')", "ImportError: it is of another version"),
        ("import os; os._exit(3)", "exit status 3"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
    ],
)
def test_the_reason_is_the_last_line_that_says_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    (tmp_path / "worker_of_a_test.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert why_not_loaded("worker_of_a_test") == reason
