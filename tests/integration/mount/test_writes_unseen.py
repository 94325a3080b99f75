"""Writers of another PID namespace than the mount's: seen where that is below the mount's own, and unseen elsewhere."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stripefs.gc.recover import recover
from stripefs.store.local import LocalStore
from stripefs.store.striped import StripedStore
from tests.support.waiting import child_of
from tests.support.written_mounts import hidden, writable
from tests.tools.mounts import Mounted, Mounts, eventually

pytestmark = pytest.mark.mount

APART = ("unshare", "--pid", "--fork", "--kill-child")

_WRITER = """
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
os.write(file, b"new")
if sys.argv[2] == "fsync":
    os.fsync(file)
print("written", flush=True)
sys.stdin.read()
try:
    os.close(file)
except OSError as error:
    sys.exit(error.errno)
"""


def _write(path: Path, how: str = "", *, killed: bool, wrapper: tuple[str, ...] = ()) -> int:
    """Write to a file; how that ended: the errno of its close, 0, or minus a signal."""
    command = [*wrapper, sys.executable, "-c", _WRITER, str(path), how or "plain"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        if killed:
            os.kill(child_of(writer.pid) if wrapper else writer.pid, signal.SIGKILL)
        writer.stdin.close()
        return writer.wait(60)


def _idle(mounted: Mounted) -> None:
    eventually(lambda: mounted.status()["tree"]["open_for_writing"] == 0, "the end of the writing")


def test_a_writer_in_a_namespace_below_the_mounts_own(mounts: Mounts) -> None:
    mounts.forgive("its writer was killed")
    mounted = mounts.start(writable(mounts)).wait_ready()
    (mounts.source / "f").write_bytes(b"old")
    _write(mounted.path / "f", killed=True, wrapper=APART)
    _idle(mounted)
    assert (mounts.source / "f").read_bytes() == b"old"
    assert _write(mounted.path / "f", killed=False, wrapper=APART) == 0
    assert (mounts.source / "f").read_bytes() == b"new"
    assert mounted.stop() == 0


@pytest.mark.parametrize(("how", "published"), [("plain", False), ("fsync", True)])
@pytest.mark.parametrize("killed", [False, True])
def test_a_writer_that_the_mount_does_not_see(mounts: Mounts, how: str, published: bool, killed: bool) -> None:
    """The mount runs in a namespace of its own, as in a sidecar, and all its writers outside of that."""
    mounts.forgive("is not published")
    mounted = mounts.start(writable(mounts, publish_unseen="after-fsync"), APART).wait_ready()
    supervisor = child_of(mounted.process.pid)
    assert "--publish-unseen=after-fsync" in mounted.log_text()
    (mounts.source / "f").write_bytes(b"old")
    ended = _write(mounted.path / "f", how, killed=killed)
    assert ended == (-signal.SIGKILL if killed else 0 if published else errno.EIO)
    eventually(lambda: not [one for one in hidden(mounts.source) if one.endswith("-lock")], "the end of the writing")
    assert (mounts.source / "f").read_bytes() == (b"new" if published else b"old")
    if not published:
        assert "stripefs recover" in mounted.log_text()
        store = LocalStore(os.fsencode(mounts.source))
        recover(store, StripedStore(store), b"/f", to=b"/back")
        assert (mounts.source / "back").read_bytes() == b"new"
    os.kill(supervisor, signal.SIGTERM)
    assert mounted.process.wait(60) == 0
    assert hidden(mounts.source) == []
