"""A small image with busybox in it, and containers of it, each run by a process of its own that tests may kill.

The processes are forked by a server that has everything imported, which is four times as quick as starting each anew.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagefs.plane import erofs
from imagefs.run.container import run
from imagefs.run.options import RunOptions
from stripefs.errors import StripefsError
from stripefs.fuse import kernel
from tests.support.images.small_image import SmallImage
from tests.support.leaks import MARK
from tests.support.mount_namespace import unshared
from tests.support.waiting import PATIENCE, processes

__all__ = ["Containers", "Running", "fill", "wait_for"]

_APPLETS = "cat chmod df echo env hostname id ls mkdir mknod pwd rm setsid sh sleep stat stty touch true"


def wait_for(condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """The kernel lets go of what nobody holds a moment later."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def fill(root: Path) -> None:
    """A tree that commands can be run in."""
    for folder in ("bin", "dev", "etc", "proc", "run", "srv", "sys", "tmp", "var/tmp", "home/ann"):
        (root / folder).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin")  # which needs no libraries
    for name in _APPLETS.split():
        (root / "bin" / name).symlink_to("busybox")
    (root / "bin/script").write_text('#!/bin/sh\necho script "$@"\n')
    (root / "bin/script").chmod(0o755)
    (root / "bin/plain").write_text("nothing to execute")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nann:x:1234:100::/home/ann:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nusers:x:100:\naudio:x:29:ann\nvideo:x:44:bob,ann\n")
    (root / "etc/hosts").write_text("the image's\n")
    (root / "srv/data").write_bytes(os.urandom(200_000))
    (root / "var/run").symlink_to("../run")


@dataclass(frozen=True)
class _Request:
    options: RunOptions
    config: dict[str, Any]
    image: SmallImage
    backing: erofs.Backing
    folders: tuple[str, str]
    hold: str
    served: bool


class Running:
    """A process that runs a container. Its output goes to files."""

    def __init__(self, pid: int, folder: Path, wait: Callable[[int], int]) -> None:
        self.pid = pid
        self._folder, self._wait = folder, wait

    @property
    def output(self) -> str:
        return (self._folder / "out").read_text()

    @property
    def errors(self) -> str:
        return (self._folder / "err").read_text()

    def says(self, text: str) -> None:
        """Wait until the container has written `text`."""
        assert wait_for(lambda: text in self.output), self.output + self.errors

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def end(self) -> int:
        """Its exit status; negative for the signal that killed it."""
        return self._wait(self.pid)


class Containers:
    """Runs containers with their folders below `folder`; `left` says what they left.

    prepare: shell commands that come first, in a mount namespace of all these containers.
    """

    def __init__(self, image: SmallImage, folder: Path, prepare: str = "") -> None:
        self.image, self.folder = image, folder
        self.runtime_dir, self.scratch_dir = str(folder / "runtime"), str(folder / "scratch")
        self.cgroup = f"/imagefs-test-{os.getpid()}"
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.tools.containers", str(theirs.fileno())]
            if prepare:
                command = list(unshared(folder, *command, prepare=prepare))
            self._server = subprocess.Popen(command, pass_fds=(theirs.fileno(),))
        self._count = 0
        self._others = set(self._marked())  # servers that other tests of this run have started

    def start(
        self,
        *command: str,
        config: dict[str, Any] | None = None,
        image: SmallImage | None = None,
        backing: erofs.Backing = "file",
        hold: str = "",
        stdio: int | None = None,
        scratch_dir: str = "",
        served: bool = False,
        **options: Any,
    ) -> Running:
        """hold: a file; the image is mounted when it is there. stdio: a descriptor instead of files.

        served: a process stays beside the container, as one that serves its tree would.
        """
        self._count += 1
        folder = self.folder / f"{self._count}"
        folder.mkdir()
        wanted = RunOptions(command=command, cgroup_parent=self.cgroup, **options)
        wanted = wanted._replace(env=[*wanted.env, MARK])
        folders = (self.runtime_dir, scratch_dir or self.scratch_dir)
        request = _Request(wanted, config or {}, image or self.image, backing, folders, hold, served)
        with open(os.devnull, "rb") as null, (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            files = [null.fileno(), out.fileno(), err.fileno()] if stdio is None else [stdio] * 3
            socket.send_fds(self._channel, [pickle.dumps(request)], files)
        return Running(int(self._channel.recv(100)), folder, self._wait)

    def run(self, *command: str, **wanted: Any) -> tuple[int, str, str]:
        """Exit status, output and errors."""
        running = self.start(*command, **wanted)
        status = running.end()
        return status, running.output, running.errors

    def names(self) -> list[str]:
        """Of the containers whose folders are there."""
        runs = Path(self.runtime_dir, "runs")
        return sorted(entry.name for entry in runs.iterdir() if entry.name != ".lock") if runs.exists() else []

    def cgroups(self) -> list[Path]:
        """Those of containers that are there."""
        tops = [mount.path for mount in kernel.mounts() if mount.fstype in ("cgroup", "cgroup2")]
        return [entry for top in tops for entry in Path(top + self.cgroup).glob("imagefs-*")]

    def processes(self) -> list[int]:
        """All that runs inside of containers, and their runtimes."""
        return [pid for pid in self._marked() if pid not in self._others]

    def _marked(self) -> list[int]:
        mark = f"{MARK}={os.environ[MARK]}".encode()
        return [pid for pid, words in processes("environ") if mark in words and pid != self._server.pid]

    def left(self) -> list[object]:
        """Leftovers when no container runs; the kernel gets a moment to release them."""

        def look() -> list[object]:
            scratch = Path(self.scratch_dir)
            uppers = list(scratch.iterdir()) if scratch.exists() else []
            below = [mount.path for mount in kernel.mounts() if mount.path.startswith(str(self.folder))]
            return [*self.names(), *uppers, *below, *self.cgroups(), *self.processes()]

        wait_for(lambda: not look())
        return look()

    def close(self) -> None:
        self._channel.close()
        self._server.wait()
        for mount in kernel.mounts():
            if mount.fstype in ("cgroup", "cgroup2") and os.path.isdir(mount.path + self.cgroup):
                os.rmdir(mount.path + self.cgroup)

    def _wait(self, pid: int) -> int:
        self._channel.send(pickle.dumps(pid))
        return int(self._channel.recv(100))


def _serve(channel: socket.socket) -> None:
    while True:
        message, files, _, _ = socket.recv_fds(channel, 1 << 18, 3)
        if not message:
            return
        request = pickle.loads(message)
        if isinstance(request, _Request):
            pid = os.fork()
            if pid == 0:
                channel.close()
                _run(request, files)
            for file in files:
                os.close(file)
            channel.send(str(pid).encode())
        else:
            channel.send(str(os.waitstatus_to_exitcode(os.waitpid(request, 0)[1])).encode())


def _run(request: _Request, files: list[int]) -> None:
    status = 99
    try:
        if os.isatty(files[0]):
            os.setsid()
            import fcntl
            import termios

            fcntl.ioctl(files[0], termios.TIOCSCTTY, 0)
        else:
            os.setpgid(0, 0)
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        status = run(request.options, request.config, [lambda target: _mount(request, target)], *request.folders)
    except StripefsError as error:
        print(type(error).__name__, error, file=sys.stderr, flush=True)
        status = error.exit_code
    except BaseException as error:  # noqa: BLE001 the border of the process
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        os._exit(status)


def _mount(request: _Request, target: str) -> None:
    if request.hold:
        wait_for(lambda: os.path.exists(request.hold))
    if request.served:
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
    erofs.mount(request.image.metadata, [request.image.device], target, request.backing)


if __name__ == "__main__":
    # The requests were pickled under the module's own name.
    from tests.tools import containers

    containers._serve(socket.socket(fileno=int(sys.argv[1])))
