"""Runtimes: which is taken, what their logs mean, and what is swept of runs that were killed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from imagefs.errors import CommandNotExecutable, CommandNotFound, RunError
from imagefs.run import runtime
from imagefs.run.bundle import RunFolder, sweep
from imagefs.run.host import devices as find_devices
from imagefs.run.runtime import Runtime


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        ('{"level":"error","msg":"... process: exec: \\"x\\": executable file not found in $PATH"}', CommandNotFound),
        ('{"level":"error","msg":"... exec: \\"/x\\": stat /x: no such file or directory"}', CommandNotFound),
        ('{"level":"error","msg":"... exec: \\"/x\\": permission denied"}', CommandNotExecutable),
        ('{"level":"error","msg":"executable file `x` not found in $PATH: No such file"}', CommandNotFound),
        ('{"level":"error","msg":"open executable: Permission denied"}', CommandNotExecutable),
        ('{"level":"error","msg":"mount `x` to `/y`: No such file or directory"}', RunError),
        (
            '{"level":"error","msg":"exec: \\"x\\": executable file not found"}\n{"level":"error","msg":"mount"}',
            RunError,
        ),
        ('{"level":"warning","msg":"executable file not found in $PATH"}', RunError),
        ('[]\n7\nnothing\n{"level":"error"', RunError),
        ("", RunError),
    ],
)
def test_logs(tmp_path: Path, log: str, kind: type[RunError]) -> None:
    (tmp_path / "log").write_text(log)
    assert type(Runtime("/usr/bin/runc", "runc").failure(str(tmp_path), "x")) is kind


@pytest.mark.parametrize(
    ("arguments", "environment", "stack", "fits"),
    [
        (["/x", "a" * 131071], [], 8 << 20, True),
        (["/x", "a" * 131072], [], 8 << 20, False),
        (["/x"], ["A=" + "a" * 131070], -1, False),
        (["/x"], ["a" * 1023] * 2000, 8 << 20, True),
        (["/x"], ["a" * 1023] * 2050, 8 << 20, False),
        (["/x"], ["a" * 1023] * 6000, -1, True),
        (["/x"], ["a" * 1023] * 6200, -1, False),
        (["/x"], ["a" * 1023] * 100, 4096, True),
        (["/x"], ["a" * 1023] * 130, 4096, False),
    ],
)
def test_arguments_that_the_kernel_takes(arguments: list[str], environment: list[str], stack: int, fits: bool) -> None:
    if fits:
        runtime.check_arguments(arguments, environment, stack)
    else:
        with pytest.raises(CommandNotExecutable, match="longer than the kernel takes"):
            runtime.check_arguments(arguments, environment, stack)


def test_what_a_runtime_said_is_not_told_again(tmp_path: Path) -> None:
    silent = Runtime("/usr/bin/runc", "runc").failure(str(tmp_path), "x")
    assert (silent.reported, silent.message, silent.exit_code) == (False, "runc could not start the container", 125)
    (tmp_path / "log").write_text('{"level":"error","msg":"mount"}')
    assert Runtime("/usr/bin/runc", "runc").failure(str(tmp_path), "x").reported


def test_which_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"relative:{tmp_path}:/nothing")
    with pytest.raises(RunError, match="neither crun nor runc"):
        runtime.find("auto")
    for name in ("runc", "my-crun"):
        (tmp_path / name).touch(mode=0o755)
    (tmp_path / "crun").mkdir()
    assert runtime.find("auto") == Runtime(f"{tmp_path}/runc", "runc")
    (tmp_path / "crun").rmdir()
    (tmp_path / "crun").touch(mode=0o755)
    assert runtime.find("auto") == Runtime(f"{tmp_path}/crun", "crun")
    assert runtime.find("runc") == Runtime(f"{tmp_path}/runc", "runc")
    assert runtime.find(f"{tmp_path}/my-crun") == Runtime(f"{tmp_path}/my-crun", "crun")
    for wanted in ("kata", f"{tmp_path}/kata", ""):
        with pytest.raises(RunError, match="there is no program"):
            runtime.find(wanted)


def test_devices() -> None:
    [null] = find_devices(["/dev/null", "/dev/../dev/null"])
    assert (null.path, null.kind, null.major, null.minor) == ("/dev/null", "c", 1, 3)
    for path in ("/dev/nothing", "/etc/passwd", "/etc/apt"):
        with pytest.raises(RunError, match=f"--device {path}"):
            find_devices([path])


# Folders of runs


def killed(runtime_dir: Path, scratch_dir: Path) -> RunFolder:
    """Leftovers of a run that was killed."""
    folder = RunFolder(str(runtime_dir), str(scratch_dir))
    os.mkdir(folder.rootfs)
    os.makedirs(f"{folder.scratch}/upper/written")
    os.close(folder.lock)
    return folder


def test_a_run_removes_its_folder(tmp_path: Path) -> None:
    with RunFolder(str(tmp_path / "run"), str(tmp_path / "scratch")) as folder:
        os.makedirs(f"{folder.scratch}/upper/written")
        os.mkdir(folder.rootfs)
        assert not folder.started()
        Path(folder.path, "pid").touch()
        assert folder.started()
        assert sweep(str(tmp_path / "run")) == []
        assert Path(folder.path).exists()
    assert os.listdir(tmp_path / "run/runs") == [".lock"]
    assert os.listdir(tmp_path / "scratch") == []


def test_what_is_removed_does_not_depend_on_what_is_recorded(tmp_path: Path) -> None:
    with RunFolder(str(tmp_path / "run"), str(tmp_path / "scratch"), "slurm/job7") as folder:
        assert folder.cgroup == f"/slurm/job7/{folder.name}"
        os.makedirs(folder.scratch)
        shutil.rmtree(tmp_path / "run")
    assert os.listdir(tmp_path / "scratch") == []


def test_sweeping(tmp_path: Path) -> None:
    assert sweep(str(tmp_path / "never-used")) == []
    left = [killed(tmp_path, tmp_path / "scratch") for _ in range(3)]
    with RunFolder(str(tmp_path)) as alive:
        assert sweep(str(tmp_path)) == sorted(folder.name for folder in left)
        assert os.path.isdir(alive.path)
    assert os.listdir(tmp_path / "scratch") == []
    assert sweep(str(tmp_path)) == []
    (tmp_path / "runs/imagefs-1").mkdir()  # half made, or half removed
    assert sweep(str(tmp_path)) == ["imagefs-1"]
    assert os.listdir(tmp_path / "runs") == [".lock"]


def test_a_record_that_was_cut_short_removes_nothing_else(tmp_path: Path) -> None:
    folder = killed(tmp_path, tmp_path / "scratch")
    Path(folder.path, "scratch").write_text(str(tmp_path / "scratch"))
    Path(folder.path, "cgroup").write_text("/")
    assert sweep(str(tmp_path)) == [folder.name]
    assert os.listdir(tmp_path / "scratch") == [folder.name]


def test_what_cannot_be_removed_stays_for_the_next_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = killed(tmp_path, tmp_path / "scratch")
    Path(folder.rootfs, "something").touch()
    assert sweep(str(tmp_path)) == []
    assert "was not removed" in caplog.text
    Path(folder.rootfs, "something").unlink()
    assert sweep(str(tmp_path)) == [folder.name]
    assert os.listdir(tmp_path / "runs") == [".lock"]
