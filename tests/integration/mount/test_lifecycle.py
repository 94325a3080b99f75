"""Coming up, refusing to, and going away."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from stripefs.errors import ConfigError, MountError, NotADirectory, NotFound, ServiceDown
from stripefs.fuse import control, kernel
from tests.support.mount_namespace import unshared
from tests.tools.mounts import MIB, PATIENCE, Mounts, eventually, reading, sha256, workers_of

pytestmark = pytest.mark.mount


def _umount(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    program = ["umount", *options] if os.geteuid() == 0 else ["fusermount3", "-u", *options]
    return subprocess.run([*program, str(path)], capture_output=True, text=True)


# Refused


def test_source_that_does_not_exist(mounts: Mounts) -> None:
    assert isinstance(mounts.refuse(f"file://{mounts.folder}/absent"), NotFound)


def test_source_that_is_a_file(mounts: Mounts) -> None:
    (mounts.source / "file").touch()
    assert isinstance(mounts.refuse(f"file://{mounts.source}/file"), NotADirectory)


def test_source_at_a_wrong_port(mounts: Mounts) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        error = mounts.refuse(f"hdfs://127.0.0.1:{taken.getsockname()[1]}/", io_timeout=20)
    assert isinstance(error, ServiceDown)


def test_source_that_does_not_answer(mounts: Mounts) -> None:
    error = mounts.refuse(mounts.url("delayed+", "?delay=60s&on=stat"), io_timeout=0.5)
    assert isinstance(error, ServiceDown)
    assert "within 0.5 s" in error.message


def test_mountpoint_missing(mounts: Mounts) -> None:
    error = mounts.refuse(mountpoint=mounts.folder / "absent")
    assert isinstance(error, MountError)
    assert error.hint == f"mkdir -p {mounts.folder / 'absent'}"


def test_mountpoint_that_is_a_file(mounts: Mounts) -> None:
    file = mounts.folder / "file"
    file.touch()
    assert "not a directory" in mounts.refuse(mountpoint=file).message


def test_mountpoint_not_empty(mounts: Mounts) -> None:
    folder = mounts.folder / "full"
    folder.mkdir()
    (folder / "file").touch()
    assert "nonempty" in mounts.refuse(mountpoint=folder).hint
    mounted = mounts.mount(mountpoint=folder, options=("nonempty",))
    assert os.listdir(folder) == []
    assert mounted.stop() == 0
    assert os.listdir(folder) == ["file"]


def test_mountpoint_busy(mounts: Mounts) -> None:
    first = mounts.mount()
    error = mounts.refuse(mountpoint=first.path)
    assert isinstance(error, MountError)
    assert f"pid {first.process.pid}" in error.message
    assert first.status()["generation"] == 1  # the refused one did not take its control socket away


def test_mountpoint_with_a_dead_mount(mounts: Mounts) -> None:
    first = mounts.mount()
    first.process.kill()
    first.process.wait()
    eventually(lambda: not workers_of(str(first.path)), "the worker's end")
    assert "umount -l" in mounts.refuse(mountpoint=first.path).hint
    assert _umount(first.path, "-l" if os.geteuid() == 0 else "-z").returncode == 0
    mounts.mount(mountpoint=first.path)


def test_mountpoint_that_holds_our_own_program(mounts: Mounts) -> None:
    error = mounts.refuse(mountpoint=Path(sys.prefix).resolve(), options=("nonempty",))
    assert "which the mount itself needs" in error.message


def test_unknown_option(mounts: Mounts) -> None:
    assert isinstance(mounts.refuse(options=("nosuch",)), ConfigError)


def test_metrics_on_a_public_address(mounts: Mounts) -> None:
    assert isinstance(mounts.refuse(metrics="0.0.0.0:0"), ConfigError)


@pytest.mark.root
def test_no_fuse_device(mounts: Mounts) -> None:
    error = _mount_in_namespace(mounts, "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3")
    assert "--device /dev/fuse --cap-add SYS_ADMIN" in error


@pytest.mark.root
def test_no_right_to_mount(mounts: Mounts) -> None:
    error = _mount_in_namespace(mounts, "true", "setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")
    assert "--device /dev/fuse --cap-add SYS_ADMIN" in error


def _mount_in_namespace(mounts: Mounts, prepare: str, *wrapper: str) -> str:
    settings = mounts.prepare()
    mounted = mounts.start(settings, unshared(mounts.folder, *wrapper, prepare=prepare))
    with pytest.raises(MountError) as caught:
        mounted.wait_ready()
    assert mounted.process.wait(PATIENCE) == 32
    return str(caught.value)


# Up


def test_table_entry_and_options(mounts: Mounts) -> None:
    mounted = mounts.mount(options=("noexec", "noatime"))
    found = kernel.find_mount(str(mounted.path))
    assert found is not None
    assert (found.fstype, found.source) == ("fuse.stripefs", mounts.url())
    assert {"ro", "nosuid", "nodev", "noexec", "noatime"} <= set(found.options.split(","))
    assert "default_permissions" in found.super_options


@pytest.mark.root
def test_kernel_limits_are_set_and_reported(mounts: Mounts) -> None:
    mounted = mounts.mount(read_ahead_kb=2048, max_background=40)
    report = mounted.status()["kernel"]
    assert {name: (fact["now"], fact["limit"]) for name, fact in report.items()} == {
        "read_ahead_kb": (2048, ""),
        "max_background": (40, ""),
        "congestion_threshold": (30, ""),
    }
    found = kernel.find_mount(str(mounted.path))
    assert found is not None
    assert Path(f"/sys/class/bdi/{found.device}/read_ahead_kb").read_text() == "2048\n"


def test_two_mounts_of_one_source(mounts: Mounts) -> None:
    (mounts.source / "data").write_bytes(random.Random(3).randbytes(MIB))
    first, second = mounts.mount(), mounts.mount()
    assert sha256(first.path / "data") == sha256(second.path / "data") == sha256(mounts.source / "data")
    first.stop()
    assert sha256(second.path / "data") == sha256(mounts.source / "data")
    assert {first.path, second.path} & {Path(mount.mountpoint) for mount in control.find_mounts()} == {second.path}


# Control and metrics


def test_control_socket_is_private_and_goes_away(mounts: Mounts) -> None:
    mounted = mounts.mount()
    files = [file for file in control.runtime_directory().iterdir() if file.suffix != ".log"]
    mine = [file for file in files if file.suffix == ".json" and str(mounted.path) in file.read_text()]
    assert len(mine) == 1
    assert stat.S_IMODE(mine[0].with_suffix(".sock").stat().st_mode) == 0o600
    assert control.query(str(mounted.path), "stop") == {"v": 1, "stopping": True}
    assert mounted.process.wait(PATIENCE) == 0
    assert not mine[0].exists()
    assert not mine[0].with_suffix(".sock").exists()
    with pytest.raises(MountError):
        control.query(str(mounted.path), "status")


def test_control_refuses_what_it_does_not_know(mounts: Mounts) -> None:
    mounted = mounts.mount()
    with pytest.raises(MountError, match="refused"):
        control.query(str(mounted.path), "dance")
    assert mounted.status()["supervisor_pid"] == mounted.process.pid


def test_files_of_a_killed_supervisor_are_removed(mounts: Mounts) -> None:
    mounted = mounts.mount()
    mounted.process.kill()
    mounted.process.wait()
    found = {str(mounted.path)}
    eventually(lambda: not found & {mount.mountpoint for mount in control.find_mounts()}, "no trace of it")
    assert not any(str(mounted.path) in file.read_text() for file in control.runtime_directory().glob("*.json"))


def test_metrics_survive_a_worker(mounts: Mounts) -> None:
    mounts.forgive("the next one takes over")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    mounted = mounts.mount(metrics=address)
    for restarts in range(2):
        os.listdir(mounted.path)
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE) as answer:
            assert f"stripefs_worker_restarts_total {restarts}" in answer.read().decode()
        mounted.kill_worker()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://{address}/other", timeout=PATIENCE)


# Down


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_unmount(mounts: Mounts, number: signal.Signals) -> None:
    mounted = mounts.mount()
    worker = mounted.worker()
    mounted.process.send_signal(number)
    assert mounted.process.wait(PATIENCE) == 0
    assert not mounted.in_table()
    assert not Path(f"/proc/{worker}").exists()


def test_unmounted_from_outside(mounts: Mounts) -> None:
    mounted = mounts.mount()
    assert _umount(mounted.path).returncode == 0
    assert mounted.process.wait(PATIENCE) == 0
    assert not workers_of(str(mounted.path))


def test_unmounted_lazily_while_a_file_is_open(mounts: Mounts) -> None:
    (mounts.source / "data").write_bytes(b"x" * (4 * MIB))
    mounted = mounts.mount()
    with open(mounted.path / "data", "rb", buffering=0) as opened:
        assert _umount(mounted.path, "-l" if os.geteuid() == 0 else "-z").returncode == 0
        assert not mounted.in_table()
        assert len(opened.read()) == 4 * MIB
    assert mounted.process.wait(PATIENCE) == 0


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


def test_umount_while_reading_says_busy(mounts: Mounts) -> None:
    (mounts.source / "data").write_bytes(b"x" * (2 * MIB))
    mounted = mounts.mount()
    command = [sys.executable, "-c", "import sys; f = open(sys.argv[1]); print(1, flush=True); sys.stdin.read()"]
    with reading([*command, str(mounted.path / "data")]) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "1\n"
        assert "busy" in _umount(mounted.path).stderr
        assert sha256(mounted.path / "data") == sha256(mounts.source / "data")
    assert mounted.stop() == 0


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
