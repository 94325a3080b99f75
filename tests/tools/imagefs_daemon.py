"""A daemon of a test's own: its folders, the installed command, and nothing left when the test is over."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from imagefs.build.content import scan
from imagefs.build.image import BuildReport, build
from imagefs.daemon.client import Client
from imagefs.daemon.launcher import end_kept, running
from imagefs.settings import DaemonSettings
from stripefs.fuse import kernel
from tests.support.images.stores import images_in
from tests.support.waiting import PATIENCE, eventually, processes

__all__ = ["IMAGEFS", "PATIENCE", "Service", "built", "commands", "eventually"]

IMAGEFS = [sys.executable, "-P", "-c", "import sys; from imagefs.cli.main import run; sys.exit(run())"]
"""The command `imagefs`."""

_KEEPER = "stripefs.fuse.keeper"


def built(source: Path, store: Path, tag: str, config: dict[str, Any] | None = None) -> BuildReport:
    """The tree at `source` as an image in the directory `store`."""
    return build(*scan(str(source)), images_in(store), tag=tag, config=config)


class Service:
    """A daemon below `folder`, not yet started; the command starts it."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[str]] = []
        self.settings = DaemonSettings(cache=str(folder / "cache"), runtime=str(folder / "run"))
        self.environment = {
            **os.environ,
            "IMAGEFS_CACHE": self.settings.cache,
            "IMAGEFS_RUNTIME": self.settings.runtime,
            **{f"IMAGEFS_{name.upper()}": value for name, value in settings.items()},
        }

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """`imagefs ARGUMENTS`, under way."""
        process = subprocess.Popen(
            [*IMAGEFS, *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        self._started.append(process)
        return process

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=300)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def ok(self, *arguments: str) -> str:
        """The output of `imagefs ARGUMENTS`, which must succeed."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr + self.log()
        return done.stdout

    def mountpoint(self, name: str = "mnt") -> Path:
        path = self.folder / name
        path.mkdir(exist_ok=True)
        return path

    def answers(self) -> bool:
        """True if the daemon answers."""
        return running(self.settings) is not None

    def status(self) -> dict[str, Any]:
        """The daemon's status; `imagefs status --json` prints the same."""
        return Client(self.settings).status()

    def plan_is_here(self) -> bool:
        """True if its one image has a plan."""
        (image,) = self.status()["images"]
        return bool(image["planned_blocks"])

    def log(self) -> str:
        path = Path(self.settings.runtime, "imagefs.log")
        return path.read_text() if path.exists() else ""

    def worker(self) -> int:
        return int(self.status()["worker_pid"])

    def kill_worker(self) -> None:
        os.kill(self.worker(), signal.SIGKILL)

    def processes(self) -> list[int]:
        """Everything of this daemon that runs, but for its keeper."""
        return [pid for pid, command in self._commands() if _KEEPER not in command]

    def keepers(self) -> list[int]:
        """Process numbers of the keepers of this daemon's connection, or of one that has ended."""
        return [pid for pid, command in self._commands() if _KEEPER in command]

    def _commands(self) -> Iterator[tuple[int, Sequence[str]]]:
        for pid, command in commands():
            if any(self.folder.as_posix() in word for word in command):
                yield pid, command

    def stop(self) -> None:
        """End the daemon for good; what is mounted stays."""
        Client(self.settings).stop(force=True)
        eventually(lambda: not self.processes() and not self.keepers(), "the end of the daemon")

    def close(self) -> None:
        """End everything, whatever state it is in."""
        self.end_commands()
        for _ in range(3):
            for mount in reversed(kernel.mounts()):
                if Path(mount.path).is_relative_to(self.folder):
                    kernel.unmount(mount.path, kernel.MNT_DETACH)
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it is ending by itself
            card = Path(self.settings.runtime, "imagefs.json").read_text()
            os.kill(json.loads(card)["supervisor_pid"], signal.SIGTERM)
        try:
            eventually(self._ended, "the end of the daemon")
        except AssertionError as error:
            left = dict(self._commands())
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"left: {[' '.join(command)[:300] for command in left.values()]}") from error

    def _ended(self) -> bool:
        """Tells whether nothing of the daemon runs. A keeper takes an end once its supervisor is gone; another mount
        namespace may use its mounts."""
        end_kept(self.settings)
        return not self.processes() and not self.keepers()

    def end_commands(self) -> None:
        """Kill those that still run; the daemon stays."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def commands() -> Iterator[tuple[int, Sequence[str]]]:
    """Every other process, with its command line."""
    for pid, words in processes():
        yield pid, [os.fsdecode(word) for word in words]
