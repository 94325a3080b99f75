"""A real containerd reads the block that `imagefs snapshotter config` prints, and starts with it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefs.doctor.services import containerd_facts, judge_containerd
from imagefs.snapshotter.containerd_config import Wanted, containerd_config, parse_version
from tests.support.waiting import eventually

pytestmark = [pytest.mark.root]


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    """A file with the block of the containerd that is installed, and folders of this test's own."""
    printed = subprocess.run(["containerd", "--version"], capture_output=True, text=True, check=True).stdout
    version = parse_version(printed)
    assert version is not None
    made = containerd_config(version[0], Wanted(str(tmp_path / "snapshotter.sock"), str(tmp_path / "snapshots")))
    head, line, tables = made.partition(f"version = {version[0] + 1}\n")
    assert line
    own = f'root = "{tmp_path}/root"\nstate = "{tmp_path}/state"\n[grpc]\n  address = "{tmp_path}/containerd.sock"\n'
    file = tmp_path / "config.toml"
    file.write_text(head + line + own + tables)
    return file


@pytest.fixture
def containerd(configuration: Path) -> Iterator[Path]:
    """The socket of a containerd that was started with it."""
    log = (configuration.parent / "log").open("wb")
    with log, subprocess.Popen(["containerd", "-c", str(configuration)], stdout=log, stderr=log) as process:
        try:
            yield configuration.parent / "containerd.sock"
        finally:
            process.terminate()


def test_containerd_starts_with_the_plugin(containerd: Path) -> None:
    def plugins() -> dict[str, str]:
        listed = subprocess.run(["ctr", "-a", str(containerd), "plugins", "ls"], capture_output=True, text=True)
        return {words[1]: words[-1] for line in listed.stdout.splitlines() if len(words := line.split()) >= 4}

    states = eventually(plugins, "containerd to list its plugins")
    assert (states["imagefs"], states["cri"]) == ("ok", "ok")
    here = containerd.parent
    (here / "root/io.containerd.snapshotter.v1.imagefs").symlink_to(here / "snapshots")  # before 1.7.17
    found = judge_containerd(
        containerd_facts(str(here / "config.toml")), str(here / "snapshotter.sock"), str(here / "snapshots")
    )
    assert [one for one in found if one.state != "ok"] == []
