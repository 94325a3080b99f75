"""Mounts of the tree plane for tests, without a daemon: an image's metadata over the files that hold its devices."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stripefs.fuse import daemonize, kernel
from stripefs.fuse.control import find_mounts, query
from stripefs.fuse.ipc import MountSpec
from stripefs.settings import MountSettings
from tests.tools.mounts import eventually

__all__ = ["TreeMount"]


class TreeMount:
    """One mount at `folder`/tree, there once this is made. Raises what kept it from coming up."""

    def __init__(self, metadata: str, devices: Sequence[str], folder: Path, io_timeout: float = 30) -> None:
        self.path = folder / "tree"
        self.path.mkdir()
        settings = MountSettings(
            mountpoint=str(self.path),
            log_file=str(folder / "tree.log"),
            allow_other=True,
            options=("dev", "suid"),
        )
        payload = {"source": "store#tag", "metadata": metadata, "devices": list(devices), "io_timeout": io_timeout}
        self._job = MountSpec(
            "imagefs.plane.worker",
            json.dumps(payload),
            "store#tag",
            settings,
            command="imagefs",
            directory=str(folder / "run"),
        )
        daemonize.start(self._job)
        [mount] = find_mounts(Path(self._job.directory))
        self._supervisor = mount.supervisor_pid

    def status(self) -> dict[str, Any]:
        return query(str(self.path), "status", 30, directory=Path(self._job.directory))

    def kill_worker(self) -> None:
        os.kill(self.status()["worker_pid"], signal.SIGKILL)

    def log(self) -> str:
        return Path(self._job.mount.log_file).read_text()

    def close(self) -> None:
        while kernel.find_mount(str(self.path)) is not None:
            kernel.unmount(str(self.path), kernel.MNT_DETACH)
        eventually(self._has_ended, "the end of the supervisor")

    def _has_ended(self) -> bool:
        with contextlib.suppress(ChildProcessError):
            return os.waitpid(self._supervisor, os.WNOHANG)[0] != 0
        return True
