"""An image whose only Python is no CPython."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deps.container.job import Job
from tests.deps.installed import snapshots_in
from tests.deps.python_image import fill_pypy
from tests.imagefs.service import Service, built

pytestmark = [pytest.mark.mount, pytest.mark.root]

_JOB = "import heavy, os, sys; print(sys.implementation.name, heavy.VALUE, os.path.exists(heavy.__cached__))"


def test_an_image_with_pypy(service: Service, tmp_path: Path) -> None:
    fill_pypy(tmp_path / "root")
    built(tmp_path / "root", tmp_path / "images", "t", {"config": {"Env": ["PYTHONDONTWRITEBYTECODE=1"]}})
    job = Job(service, f"{tmp_path}/images#t", tmp_path)
    job.python = "pypy3"
    for _ in range(2):
        assert job.run("--deps-wait", "--deps-python", "pypy3", script=_JOB) == "pypy 7 True\n"
    assert "hit" in job.told
    assert len(snapshots_in(job.store).stored()) == 1
    job.nothing_is_left()
