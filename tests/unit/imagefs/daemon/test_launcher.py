"""The launcher of the daemon, as far as no process is started."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from imagefs.daemon.launcher import daemon_job
from imagefs.settings import DaemonSettings
from stripefs.errors import ConfigError


@pytest.mark.parametrize(("package", "extra"), [("pyfuse3", "mount"), ("lz4", "images")])
def test_a_package_that_the_worker_lacks_is_named_before_it_is_started(
    package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    with pytest.raises(ConfigError, match=rf"{package} is not installed .*bootseer\[{extra}\]"):
        daemon_job(DaemonSettings(cache=str(tmp_path / "cache"), runtime=str(tmp_path / "runtime")))
