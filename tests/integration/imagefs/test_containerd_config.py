"""A real containerd reads the block that `imagefs snapshotter config` prints, and starts with it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from imagefs.doctor.services import containerd_facts, judge_containerd
from imagefs.snapshotter.containerd_config import Wanted, containerd_config, parse_version
from tests.support.waiting import eventually

pytestmark = [pytest.mark.root]


def configuration(folder: Path) -> Path:
    """A file with the block of the containerd that is installed, and folders of this test's own."""
    printed = subprocess.run(["containerd", "--version"], capture_output=True, text=True, check=True).stdout
    version = parse_version(printed)
    assert version is not None
    made = containerd_config(version[0], Wanted(str(folder / "snapshotter.sock"), str(folder / "snapshots")))
    head, line, tables = made.partition(f"version = {version[0] + 1}\n")
    assert line
    own = f'root = "{folder}/root"\nstate = "{folder}/state"\n[grpc]\n  address = "{folder}/containerd.sock"\n'
    (folder / "config.toml").write_text(head + line + own + tables)
    return folder / "config.toml"


def test_containerd_starts_with_the_plugin(tmp_path: Path) -> None:
    def plugins() -> dict[str, str]:
        command = ["ctr", "-a", f"{tmp_path}/containerd.sock", "plugins", "ls"]
        listed = subprocess.run(command, capture_output=True, text=True)
        return {words[1]: words[-1] for line in listed.stdout.splitlines() if len(words := line.split()) >= 4}

    file = str(configuration(tmp_path))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(["containerd", "-c", file], stdout=log, stderr=log)
    with process:
        try:
            states = eventually(plugins, "containerd to list its plugins")
            assert (states["imagefs"], states["cri"]) == ("ok", "ok")
            (tmp_path / "root/io.containerd.snapshotter.v1.imagefs").symlink_to(tmp_path / "snapshots")  # before 1.7.17
            facts = containerd_facts(file)
            found = judge_containerd(facts, str(tmp_path / "snapshotter.sock"), str(tmp_path / "snapshots"))
            assert [one for one in found if one.state != "ok"] == []
        finally:
            process.terminate()
