"""Real mounts for tests: the supervisor as its own process, and a place that is clean again whatever a test did."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from stripefs.errors import MountError, StripefsError
from stripefs.fuse import kernel, mounting
from stripefs.fuse.control import query
from stripefs.fuse.ipc import rebuild_error, store_mount_spec
from stripefs.settings import MountSettings, ReadSettings, Settings, StoreSettings
from tests.support.mount_copies import until_unpinned
from tests.support.waiting import PATIENCE, eventually, processes

MIB = 1 << 20


def sha256(path: str | Path) -> str:
    with open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def drop_cache(path: str | Path) -> None:
    """Let the kernel forget the cached pages of one file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def workers_of(mountpoint: str) -> list[int]:
    """The pids of workers (their command line ends with their mountpoint)."""
    return [
        pid for pid, words in processes() if b"stripefs.fuse.store_worker" in words and os.fsencode(mountpoint) in words
    ]


class Observed:
    """The common questions to a mount at `path` that logs to `log`. patience in seconds: longer is a hang."""

    path: Path
    log: Path
    patience = PATIENCE

    def workers(self) -> list[int]:
        """The pids of its workers."""
        return workers_of(str(self.path))

    def worker(self) -> int:
        """The pid of the worker that is there now, or comes next."""
        return int(eventually(self.workers, "a worker", self.patience)[0])

    def kill_worker(self) -> int:
        pid = self.worker()
        os.kill(pid, signal.SIGKILL)
        return pid

    def status(self) -> dict[str, Any]:
        """The control socket's status, also while a worker is being replaced."""
        return query(str(self.path), "status", self.patience)

    def in_table(self) -> bool:
        return kernel.find_mount(str(self.path)) is not None

    def log_text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def complaints(self, forgiven: Sequence[str]) -> list[str]:
        """Log lines at WARNING or above, or of a traceback, that have none of these words."""
        return [
            line
            for line in self.log_text().splitlines()
            if any(f" {level} " in line for level in ("WARNING", "ERROR", "CRITICAL")) or "Traceback" in line
            if not any(word in line for word in forgiven)
        ]

    def take_away(self) -> None:
        """Unmount whatever of ours is there, by force."""
        while (left := kernel.find_mount(str(self.path))) is not None and left.fstype == "fuse.stripefs":
            kernel.abort(left.connection)
            if os.geteuid() == 0:
                kernel.unmount(str(self.path), kernel.MNT_DETACH)
            else:
                mounting.unmount_unprivileged(str(self.path), lazy=True)


class Mounted(Observed):
    """One supervisor process. `mountpoint` exists; the mount answers once `wait_ready` returned."""

    def __init__(self, settings: Settings, log: Path, wrapper: tuple[str, ...] = ()) -> None:
        self.settings = settings
        self.path = Path(settings.mount.mountpoint)
        self.log = log
        self.refused = False
        status, theirs = os.pipe()
        self._status = os.fdopen(status)
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                [*wrapper, sys.executable, "-P", "-m", "stripefs.fuse.daemonize", str(theirs)],
                pass_fds=(theirs,),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        os.close(theirs)
        assert self.process.stdin is not None
        with self.process.stdin:
            self.process.stdin.write(store_mount_spec(settings).to_json().encode())

    def wait_ready(self) -> Mounted:
        """Raises what kept the mount from coming up."""
        line = self._status.readline()
        assert line, f"the supervisor said nothing: {self.log_text()}"
        message = json.loads(line)
        if message["op"] == "failed":
            self.refused = True
            self.process.wait(PATIENCE)
            raise rebuild_error(message)
        return self

    def stop(self) -> int:
        until_unpinned(self.path)
        return self.stop_now()

    def stop_now(self) -> int:
        """Stop it also while somebody else keeps the mount."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def clean_up(self) -> None:
        """Leave nothing, whatever state a test left this in."""
        self._status.close()
        if self.process.poll() is None:
            until_unpinned(self.path)
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        for pid in self.workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.take_away()


class Mounts:
    """Makes mounts below `folder`, and takes them away."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "source"
        self.source.mkdir()
        self._made: list[Mounted] = []
        self.forgiven: list[str] = []

    def url(self, prefix: str = "", query_string: str = "") -> str:
        return f"{prefix}file://{self.source}{query_string}"

    def prepare(self, url: str = "", *, io_timeout: float = 30.0, memory: int = 64 * MIB, **mount: Any) -> Settings:
        mountpoint = mount.pop("mountpoint", None)
        if mountpoint is None:
            mountpoint = self.folder / f"mnt{len(self._made)}"
            mountpoint.mkdir()
        return Settings(
            StoreSettings(url=url or self.url()),
            ReadSettings(memory=memory, io_timeout=io_timeout),
            MountSettings(mountpoint=str(mountpoint), **mount),
        )

    def start(self, settings: Settings, wrapper: tuple[str, ...] = ()) -> Mounted:
        log = self.folder / f"log{len(self._made)}"
        log.touch(mode=0o666)
        log.chmod(0o666)
        mounted = Mounted(settings._replace(mount=settings.mount._replace(log_file=str(log))), log, wrapper)
        self._made.append(mounted)
        return mounted

    def mount(self, url: str = "", **options: Any) -> Mounted:
        return self.start(self.prepare(url, **options)).wait_ready()

    def refuse(self, url: str = "", **options: Any) -> StripefsError:
        """The error with which this mount fails; nothing may be left of it."""
        settings = self.prepare(url, **options)
        before = workers_of(settings.mount.mountpoint)
        mounted = self.start(settings)
        with pytest.raises(StripefsError) as caught:
            mounted.wait_ready()
        assert mounted.process.wait(PATIENCE) == caught.value.exit_code
        assert workers_of(settings.mount.mountpoint) == before
        return caught.value

    def forgive(self, *words: str) -> None:
        """Expect log lines at WARNING or above that contain any of these words."""
        self.forgiven += words

    def close(self) -> None:
        problems = []
        self._made.reverse()  # of two at one place the later one's worker and mount are there
        self._made.sort(key=lambda one: one.refused)  # but none of those that were refused
        for mounted in self._made:
            mounted.clean_up()
            problems += mounted.complaints(self.forgiven)
            if mounted.workers():
                problems.append(f"a worker of {mounted.path} is left")
        problems += [
            f"still mounted: {left.path}" for left in kernel.mounts() if Path(left.path).is_relative_to(self.folder)
        ]
        assert not problems, "\n".join(problems)


REPLACED = "the worker ended with SIGKILL; the next one takes over"


@contextlib.contextmanager
def reading(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A child that is killed, if need be, when the block ends."""
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()


__all__ = [
    "MIB", "PATIENCE", "REPLACED", "MountError", "Mounted", "Mounts", "Observed", "drop_cache", "eventually", "reading",
    "sha256", "workers_of",
]  # fmt: skip
