"""The installed command on a source, and a place that is clean again whatever happened to it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stripefs.fuse.control import find_mounts
from tests.support import waiting
from tests.support.mount_copies import until_unpinned
from tests.support.waiting import gone
from tests.tools.mounts import REPLACED, Observed

__all__ = ["PATIENCE", "REPLACED", "Live", "Place", "eventually"]

PATIENCE = 120.0
"""Seconds after which a wait is a hang; far more than anything takes on a busy machine."""

Done = subprocess.CompletedProcess[str]

eventually = functools.partial(waiting.eventually, patience=PATIENCE)


class Place:
    """Mounts below `folder` through the installed command, without the configuration of whoever runs this."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("STRIPEFS_", "HADOOP_"))}
        self.environ = clean | {"HOME": str(folder)}
        self._live: list[Live] = []
        self._forgiven: list[str] = []

    def run(self, *arguments: object, wrapper: Sequence[str] = (), patience: float = PATIENCE) -> Done:
        """`stripefs ARGUMENTS` to its end, in the folder."""
        return subprocess.run(
            [*wrapper, Path(sys.executable).with_name("stripefs"), *map(str, arguments)],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=patience,
            check=False,
        )

    def mount(self, source: str, *options: object, wrapper: Sequence[str] = ()) -> Live:
        """Mount `source` in the background at a new directory. Raises AssertionError with what the command said."""
        number = len(self._live)
        path, log = self.folder / f"mnt{number}", self.folder / f"log{number}"
        path.mkdir()
        live = Live(self, path, log)
        self._live.append(live)
        done = self.run("mount", source, path, "--log-file", log, *options, wrapper=wrapper)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done
        live.supervisor = next(mount.supervisor_pid for mount in find_mounts() if mount.mountpoint == str(path))
        return live

    def forgive(self, *words: str) -> None:
        """Expect log lines at WARNING or above that contain any of these words."""
        self._forgiven += words

    def complaints(self) -> list[str]:
        """Log lines at WARNING or above, or of a traceback, that nobody expects."""
        return [line for live in self._live for line in live.complaints(self._forgiven)]

    def close(self) -> list[str]:
        """Take all mounts away; what should not have been: unexpected log lines, and mounts that had to be forced."""
        forced = [f"{live.path} had to be taken away by force" for live in self._live if not live.clean_up()]
        return self.complaints() + forced


class Live(Observed):
    """One mount in the background."""

    patience = PATIENCE

    def __init__(self, place: Place, path: Path, log: Path) -> None:
        self.path = path
        self.log = log
        self.supervisor = 0
        self._place = place

    def told_status(self) -> dict[str, Any]:
        """Like `status`, through `stripefs status --json`."""
        done = self._place.run("status", self.path, "--json")
        assert done.returncode == 0, done
        (answer,) = json.loads(done.stdout)
        return dict(answer)

    def workers(self) -> list[int]:
        """The supervisor's children that run."""
        try:
            children = Path(f"/proc/{self.supervisor}/task/{self.supervisor}/children").read_text().split()
        except FileNotFoundError:
            return []
        return [int(child) for child in children if not gone(int(child))]

    def ended(self) -> bool:
        return not self.supervisor or gone(self.supervisor)

    def umount(self) -> None:
        done = self._place.run("umount", self.path)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done

    def terminate(self) -> None:
        until_unpinned(self.path)
        os.kill(self.supervisor, signal.SIGTERM)

    def clean_up(self) -> bool:
        """Leave nothing. True when the mount ended by itself, or as soon as it was told to."""
        workers = self.workers()
        if not self.ended():
            self.terminate()
        with contextlib.suppress(AssertionError):
            eventually(self.ended, "the supervisor's end", patience=30)
        willing = self.ended()
        if not willing:
            os.kill(self.supervisor, signal.SIGKILL)
        for pid in workers:
            if not gone(pid) and b"stripefs.fuse.store_worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                willing = False
                os.kill(pid, signal.SIGKILL)
        self.take_away()
        return willing
