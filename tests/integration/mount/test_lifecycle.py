"""Coming up, refusing to, and going away."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stripefs.errors import MountError
from stripefs.fuse import control, kernel
from tests.support.mount_namespace import unshared
from tests.tools.mounts import MIB, PATIENCE, Mounts, eventually, reading, workers_of

pytestmark = pytest.mark.mount


# Refused


def test_mountpoint_that_holds_our_own_program(mounts: Mounts) -> None:
    error = mounts.refuse(mountpoint=Path(sys.prefix).resolve(), options=("nonempty",))
    assert "which the mount itself needs" in error.message


@pytest.mark.root
@pytest.mark.parametrize(
    ("prepare", "wrapper"),
    [
        ("mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3", ()),
        ("true", ("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")),
    ],
    ids=["no device", "no right to mount"],
)
def test_what_a_container_lacks_is_said(mounts: Mounts, prepare: str, wrapper: tuple[str, ...]) -> None:
    mounted = mounts.start(mounts.prepare(), unshared(mounts.folder, *wrapper, prepare=prepare))
    with pytest.raises(MountError, match="--device /dev/fuse --cap-add SYS_ADMIN"):
        mounted.wait_ready()
    assert mounted.process.wait(PATIENCE) == 32


# Up


@pytest.mark.root
def test_options_and_limits_of_the_kernel(mounts: Mounts) -> None:
    folder = mounts.folder / "full"
    folder.mkdir()
    (folder / "file").touch()
    options = ("nonempty", "noexec", "noatime")
    mounted = mounts.mount(mountpoint=folder, options=options, read_ahead_kb=2048, max_background=40)
    assert os.listdir(folder) == []
    report = mounted.status()["kernel"]
    assert {name: (fact["now"], fact["limit"]) for name, fact in report.items()} == {
        "read_ahead_kb": (2048, ""),
        "max_background": (40, ""),
        "congestion_threshold": (30, ""),
    }
    found = kernel.find_mount(str(mounted.path))
    assert found is not None
    assert Path(f"/sys/class/bdi/{found.device}/read_ahead_kb").read_text() == "2048\n"
    assert (found.fstype, found.source) == ("fuse.stripefs", mounts.url())
    assert {"ro", "nosuid", "nodev", "noexec", "noatime"} <= set(found.options.split(","))
    assert "default_permissions" in found.super_options
    with pytest.raises(MountError, match="refused"):
        control.query(str(mounted.path), "dance")
    assert control.query(str(mounted.path), "stop") == {"v": 1, "stopping": True}
    assert mounted.process.wait(PATIENCE) == 0
    assert os.listdir(folder) == ["file"]


# Down


def test_sigterm_while_files_are_open_and_read(mounts: Mounts) -> None:
    mounts.forgive("was in use", "in use: whoever", "did not leave")
    (mounts.source / "data").write_bytes(b"x" * (16 * MIB))
    mounted = mounts.mount(mounts.url("delayed+", "?delay=300ms&on=read"))
    failures: list[int] = []

    def read() -> None:
        descriptor = os.open(mounted.path / "data", os.O_RDONLY | os.O_DIRECT)
        try:
            while True:
                os.pread(descriptor, MIB, 0)
        except OSError as error:
            failures.append(error.errno or 0)
        with contextlib.suppress(OSError):  # the connection is gone; the descriptor is closed all the same
            os.close(descriptor)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: mounted.status()["tree"]["open_files"] == 8, "eight open files")
    assert mounted.stop() == 0
    for thread in threads:
        thread.join(PATIENCE)
    assert len(failures) == 8
    assert set(failures) <= {errno.ENOTCONN, errno.ECONNABORTED, errno.EIO}
    assert not mounted.in_table()


@pytest.mark.root
def test_sigterm_while_another_namespace_holds_the_mount(mounts: Mounts) -> None:
    mounts.forgive("was in use")
    mounted = mounts.mount()
    hold = unshared(mounted.path, "sh", "-c", "echo in; read line", prepare="mount --make-rprivate /")
    with reading([*hold]) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "in\n"
        assert mounted.stop_now() == 0
    assert not mounted.in_table()


def test_supervisor_is_light() -> None:
    """It outlives everything, so it holds nothing that could leak, hang or crash."""
    program = "import sys, stripefs.fuse.supervisor; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert not {"trio", "pyfuse3", "pyarrow", "hdfs_native", "click", "asyncio"} & set(done.stdout.split())


def test_interrupted_before_the_mount_is_up(mounts: Mounts) -> None:
    mounted = mounts.start(mounts.prepare(mounts.url("delayed+", "?delay=60s&on=stat"), io_timeout=60))
    mounted.worker()
    mounted.process.send_signal(signal.SIGTERM)
    with pytest.raises(MountError, match="interrupted"):
        mounted.wait_ready()
    assert mounted.process.wait(PATIENCE) == 32
    assert not workers_of(str(mounted.path))
