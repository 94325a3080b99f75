"""TorchInductor's cache of one start, in a container on another host: every graph is found, and no compiler runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.compile.measure import Job
from bench.harness.host import host
from tests.support.waiting import eventually

pytestmark = [pytest.mark.mount, pytest.mark.root, pytest.mark.slow]


def test_a_second_start_elsewhere_compiles_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path / "job", layers=1)
    flags = ("--startup-cache", "auto")
    with host(tmp_path / "one", daemon=False, drop=False) as one, job.started(one.environment, flags) as told:
        assert (told["hits"], told["misses"]) == (0, 2)  # forward and backward
        eventually(job.published, "the caches to be published")
    assert job.compilations()
    with host(tmp_path / "other", daemon=False, drop=False) as other, job.started(other.environment, flags) as told:
        assert (told["hits"], told["misses"]) == (2, 0)
    assert job.compilations() == []
