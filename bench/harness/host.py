"""A host as imagefs finds it: a daemon of its own for each run, with nothing local when it is to be cold."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.harness import BenchError
from bench.harness.environment import cold, remove_mounts, remove_tree
from bench.harness.processes import PeakMemory, cpu_seconds, kill, matching, pss, tree
from bench.harness.programs import inside, output, wait_until

__all__ = ["PROGRAM", "Host", "await_hot", "await_plan", "host"]

PROGRAM = Path(sys.executable).with_name("imagefs")
_LOCAL_WITHIN = 120.0
_STORED_WITHIN = 30.0
_LEARNED_WITHIN = 600.0  # bounds the wait for an event that never comes
_ENDS_WITHIN = 20.0
_RESTS_WITHIN = 30.0
_AT_REST = 0.3  # seconds in which it uses less than a clock tick of a processor


class Host:
    """A machine that has nothing of any image yet: cache, runtime folder and daemon are this one's alone.

    namespace: of the network that its programs are in, "" for that of this process.
    """

    def __init__(self, folder: Path, namespace: str = "") -> None:
        self.folder = folder
        self._daemon: subprocess.Popen[bytes] | None = None
        self.program = [*inside(namespace), str(PROGRAM)]
        self.cache = folder / "cache"
        self.environment = {"IMAGEFS_CACHE": str(self.cache), "IMAGEFS_RUNTIME": str(folder / "run")}

    def command(self, *arguments: str) -> str:
        return output(*self.program, *arguments, env=os.environ | self.environment)

    def status(self) -> dict[str, Any]:
        """As `imagefs status --json` tells it."""
        found: dict[str, Any] = json.loads(self.command("status", "--json"))
        return found

    def ready(self) -> dict[str, Any]:
        """Say that the job in the one image that is used has started; how good what was fetched ahead was."""
        (image,) = self.status()["images"]
        figures: dict[str, Any] = json.loads(self.command("ready", "--json", image["id"]))
        return figures

    def fetched(self) -> int:
        """Bytes of blocks that the cache holds: the disk space of its sparse files."""
        return sum(file.stat().st_blocks * 512 for file in (self.cache / "blocks").glob("*.data"))

    def await_blocks(self) -> None:
        """Until every block of the image that is in use is in the cache; each was checked when it arrived.

        Raises BenchError where it does not come to that.
        """
        self._await(lambda device: device["complete"] or device["present"] == device["blocks"], 0.1)

    def await_local(self) -> None:
        """Until the image that is in use is whole in the cache, read back, checked once more and marked.

        Raises BenchError where it does not come to that.
        """
        self._await(lambda device: device["complete"], 0.5)

    def _await(self, reached: Callable[[dict[str, Any]], bool], pause: float) -> None:
        def all_reached() -> bool:
            return all(reached(device) for image in self.status()["images"] for device in image["devices"])

        wait_until(all_reached, _LOCAL_WITHIN, "the image was not local", pause)

    def await_rest(self) -> None:
        """Until the daemon does nothing any more, such as making a trace of a start that is over."""
        _await_rest(self.status()["supervisor_pid"])

    def memory(self) -> int:
        """Bytes that supervisor and worker hold."""
        return pss(tree(self.status()["supervisor_pid"]))

    def peak_memory(self) -> PeakMemory:
        """Watches them while a `with` block runs."""
        return PeakMemory(self.status()["supervisor_pid"], period=0.1)

    def start_daemon(self) -> None:
        """Until it answers and has come to rest, as one that is a service has. Raises BenchError."""
        with (self.folder / "daemon.log").open("wb") as log:
            process = self._daemon = subprocess.Popen(
                [*self.program, "daemon"],
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + _STORED_WITHIN
        while not (self.folder / "run/imagefs.json").exists():  # which it writes when it answers
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"imagefs daemon did not start: see {self.folder / 'daemon.log'}")
            time.sleep(0.05)
        _await_rest(process.pid)  # it loads clients of stores

    def stop(self) -> None:
        """End the daemon, politely first. Its processes are known by their environment, which names our folder."""
        if (self.folder / "run/imagefs.sock").exists():
            with contextlib.suppress(BenchError):
                self.command("daemon", "--stop", "--force")
        deadline = time.monotonic() + _ENDS_WITHIN
        while self._processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        kill(*self._processes())
        if self._daemon is not None:
            self._daemon.wait()

    def _processes(self) -> list[int]:
        wanted = f"IMAGEFS_RUNTIME={self.folder / 'run'}".encode()
        return matching("environ", lambda words: wanted in words)


def _await_rest(supervisor: int) -> None:
    deadline, used = time.monotonic() + _RESTS_WITHIN, -1.0
    while used != (used := cpu_seconds(supervisor)) and time.monotonic() < deadline:
        time.sleep(_AT_REST)


@contextmanager
def host(work: Path, *, daemon: bool = True, drop: bool = True, namespace: str = "") -> Iterator[Host]:
    """A fresh one on which the daemon is up, or not. drop: the page caches of this machine are empty then.

    Nothing of it stays but, where the block fails, the daemon's log: WORK/imagefs.log.
    """
    folder = work / "host"
    remove_tree(folder)
    (folder / "run").mkdir(0o700, parents=True)
    (folder / "cache").mkdir()
    made = Host(folder, namespace)
    try:
        if daemon:
            made.start_daemon()
        if drop:
            cold()
        yield made
    except BenchError:
        for log in (*folder.glob("run/*.log"), *folder.glob("*.log")):
            shutil.copy(log, work / "imagefs.log")
        raise
    finally:
        made.stop()
        remove_mounts(work)
        remove_tree(folder)


def await_plan(store: Path) -> None:
    """Until a recorded start has taught the next ones, in a directory store. Raises BenchError."""
    failure = f"no plan was made of the start in {store}"
    wait_until(lambda: any((store / "plans").glob("*/[!.]*")), _LEARNED_WITHIN, failure)


def await_hot(store: Path) -> None:
    """Until the one dependency snapshot of a directory store has a hot device. Raises BenchError."""
    (document,) = (store / "deps").glob("[!.]*")
    wait_until(lambda: _made_from(store, document), _LEARNED_WITHIN, f"the snapshot in {store} got no hot device")


def _made_from(store: Path, document: Path) -> str:
    image = json.loads(document.read_text())["image"]
    return str(json.loads((store / "images" / image).read_text())["base"])
