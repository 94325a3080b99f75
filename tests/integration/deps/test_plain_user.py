"""Hosts that can do less: users who are not root, and where there is no FUSE."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.deps.installed import snapshots_in
from tests.support.deps.wheels import wheel
from tests.support.mount_namespace import unshared
from tests.support.other_users import AS_NOBODY, NOBODY, let_others_mount
from tests.tools.imagefs_daemon import PATIENCE, Service

pytestmark = [pytest.mark.mount, pytest.mark.root]

WITHOUT_FUSE = "mount --bind /dev/null /dev/fuse"
IMPORT = "import heavy; print(heavy.VALUE)"


class Host:
    """A folder that everyone may enter, and belongs to nobody: where a daemon, a store and a target are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.service = Service(folder, background_rate="0", io_timeout="10")
        self.service.environment |= {
            "IMAGEFS_STORE": str(folder / "store"),
            "HOME": str(folder),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "UV_NO_CACHE": "1",
        }
        wheel(folder / "wheels", "heavy", {"heavy/__init__.py": "VALUE = 7\n"})
        os.chown(folder, NOBODY, NOBODY)

    def run(self, prepare: str, user: Sequence[str], script: str) -> subprocess.CompletedProcess[str]:
        """A job in a mount namespace of its own, whose starts are `start`."""
        begin = f"""
            set -e; cd {self.folder}
            start() {{
                code=$1; shift
                imagefs deps uv --wait --target deps "$@" --offline --no-index --find-links wheels heavy==1.0
                PYTHONPATH=deps {shlex.quote(sys.executable)} -P -c "$code"
            }}
        """
        return subprocess.run(
            unshared(self.folder, *user, "sh", "-c", begin + script, prepare=prepare),
            env=self.service.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE * 4,
        )


@pytest.fixture
def host(open_path: Path) -> Iterator[Host]:
    made = Host(open_path)
    with contextlib.closing(made.service):
        yield made


def test_a_plain_user_mounts_through_fuse(host: Host) -> None:
    script = f"""
        start '{IMPORT}'; rm -rf deps; start '{IMPORT}'
        grep " {host.folder}/deps fuse.imagefs " /proc/self/mounts >&2
        imagefs umount deps
    """
    done = host.run(let_others_mount(host.folder), AS_NOBODY, script)
    assert done.returncode == 0, done.stderr + host.service.log()
    assert done.stdout.split() == ["7", "7"]
    assert ("published" in done.stderr, "mounted at" in done.stderr) == (True, True)


def test_a_host_that_cannot_mount_installs_and_publishes(host: Host) -> None:
    """For others, who can. It installs again when it has nothing."""
    done = host.run(WITHOUT_FUSE, AS_NOBODY, f"start '{IMPORT}'; rm -rf deps; start '{IMPORT}'")
    assert done.returncode == 0, done.stderr + host.service.log()
    assert done.stdout.split() == ["7", "7"]
    assert (done.stderr.count("imagefs deps: miss "), done.stderr.count(" published:")) == (2, 1)
    assert len(snapshots_in(host.folder / "store").stored()) == 1


def test_a_probe_where_nothing_can_be_mounted_for_it(host: Host) -> None:
    """It runs on what was installed, and the snapshot says so."""
    done = host.run("true", AS_NOBODY, f"start '{IMPORT}' --probe 'import heavy; assert heavy.VALUE == 7'")
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr + host.service.log()
    snapshots = snapshots_in(host.folder / "store")
    (name,) = snapshots.stored()
    (noted,) = snapshots.load(name).findings
    assert noted == "the probe ran on what was installed: only root can mount it for the probe alone"
