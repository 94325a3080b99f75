"""A Kubernetes node in small: containerd, our daemon and snapshotter, each a process of its own, and a registry."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from stripefs.fuse import kernel
from tests.support.waiting import eventually
from tests.tools.containerd.cri import Cri
from tests.tools.imagefs_daemon import IMAGEFS
from tests.tools.registry import Registry

__all__ = ["Node", "Registry"]

_ENDS_WITHIN = 30.0


class Node:
    """Folders and processes below `folder`. The snapshotter looks for images in `stores`.

    programs: folder of the `containerd` and `ctr` to use in place of those of the system. options: of `imagefs
    snapshotter config`. parallel: let the transfer service unpack layers side by side, which containerd 2.4 and later
    can with this snapshotter.
    """

    def __init__(
        self,
        folder: Path,
        *,
        stores: Sequence[str],
        pause: str,
        programs: Path | None = None,
        options: Sequence[str] = (),
        parallel: bool = False,
    ) -> None:
        self.folder = folder
        self.root = folder / "snapshots"
        self.socket = folder / "containerd.sock"
        self._pause = pause
        self._options = options
        self._parallel = parallel
        self._stores = list(stores)
        self.environment = {
            **os.environ,
            "IMAGEFS_CACHE": str(folder / "cache"),
            "IMAGEFS_RUNTIME": str(folder / "run"),
            "IMAGEFS_BACKGROUND_RATE": "0",
            "IMAGEFS_RECORD_SECONDS": "2",
        }
        if programs is not None:
            self.environment["PATH"] = f"{programs}:{os.environ['PATH']}"
        (folder / "logs").mkdir()
        self.cache = folder / "cache"
        for disk in (self.root, self.cache):  # disks of their own, which a test can fill
            disk.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m,mode=711", "tmpfs", str(disk)], check=True)
        self.cri = Cri(self.socket, folder / "logs")
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    # -- processes -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.start_daemon()
        self.start_snapshotter()
        self.start_containerd()

    def start_daemon(self) -> None:
        self._start("daemon", [*IMAGEFS, "daemon"])
        self._until_it_listens("daemon", self.folder / "run/imagefs.sock")

    def start_snapshotter(self) -> None:
        stores = [word for store in self._stores for word in ("--stores", store)]
        place = ["--socket", str(self.folder / "snapshotter.sock"), "--root", str(self.root)]
        self._start("snapshotter", [*IMAGEFS, "snapshotter", *place, *stores])
        self._until_it_listens("snapshotter", self.folder / "snapshotter.sock")
        if "containerd" in self._running:  # which tries to connect every few seconds
            listing = ("snapshots", "--snapshotter", "imagefs", "ls")
            eventually(lambda: self.ctr(*listing, check=False).returncode == 0, "containerd's connection")

    def start_containerd(self) -> None:
        (self.folder / "config.toml").write_text(self._config())
        self._start("containerd", ["containerd", "--config", str(self.folder / "config.toml")])
        eventually(self._serves_cri, "containerd's CRI")

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        process = self._running.pop(name)
        process.send_signal(number)
        process.wait(_ENDS_WITHIN)

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def worker(self) -> int:
        """Pid of the daemon's worker."""
        return int(self.status()["worker_pid"])

    def pool(self) -> list[str]:
        """Mountpoints of images that the daemon has mounted for leases."""
        found = [one["mountpoint"] for one in self.status()["images"]]
        return [path for path in found if path.startswith(str(self.folder))]

    def reboot(self) -> None:
        """End all services, unmount everything and empty the run folders, as a machine does; then start them again."""
        for name in ("containerd", "snapshotter", "daemon"):
            self.stop(name, signal.SIGKILL)
        self._unmount(self.root, self.cache)
        shutil.rmtree(self.folder / "run")
        shutil.rmtree(self.folder / "c/state")
        self.start()

    @contextlib.contextmanager
    def full_disk(self, disk: Path | None = None) -> Iterator[None]:
        """The disk of the snapshots, unless another is given, has no room meanwhile."""
        filler = (disk or self.root) / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 20))
        try:
            yield
        finally:
            filler.unlink()

    def close(self) -> None:
        try:
            if "containerd" in self._running:
                self._remove_all()
        finally:
            self.cri.close()
            for name in ("containerd", "snapshotter", "daemon"):
                if name in self._running:
                    self.stop(name)
            self._unmount()

    def imagefs(self, *arguments: str) -> str:
        done = subprocess.run([*IMAGEFS, *arguments], env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def containerd(self, *arguments: str) -> str:
        """The output of this node's containerd for a command, with its configuration."""
        command = ["containerd", "--config", str(self.folder / "config.toml"), *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True).stdout

    # -- calls of users ------------------------------------------------------------------------------------------

    def ctr(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120, check=False)
        assert not check or done.returncode == 0, f"{command}: {done.stderr}{self.log()}"
        return done

    def run(self, image: str, name: str, *command: str) -> str:
        """The output of a container that is run to its end."""
        return self.ctr("run", "--rm", "--snapshotter", "imagefs", image, name, *command).stdout

    def remove_image(self, image: str) -> None:
        """It and what no other image needs; containerd has collected its garbage by then."""
        self.cri.remove_image(image)

    def forget_answers(self) -> None:
        """The daemon believes for a minute that no store has an image."""
        self.stop("daemon")
        self.start_daemon()

    def status(self) -> dict[str, Any]:
        """The status of the daemon."""
        found: dict[str, Any] = json.loads(self.imagefs("status", "--json"))
        return found

    def usage(self, key: str) -> int:
        """Bytes that containerd is told a snapshot takes."""
        listing = self.ctr("snapshots", "--snapshotter", "imagefs", "usage", "-b", key).stdout.splitlines()
        return int(listing[1].split()[1])

    def collect_garbage(self, image: str) -> None:
        """Have containerd collect its garbage: it does so after an image's name went."""
        self.ctr("images", "tag", image, f"{image}-garbage")
        self.ctr("images", "rm", "--sync", f"{image}-garbage")

    def diff(self, key: str) -> bytes:
        """The changes of a snapshot to its parent, as a layer's blob (tar, gzip)."""
        command = ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", "snapshots", "--snapshotter"]
        return subprocess.run([*command, "imagefs", "diff", key], check=True, capture_output=True, timeout=120).stdout

    def snapshots(self) -> dict[str, tuple[str, str]]:
        """Parent and kind by key, as containerd lists them."""
        lines = self.ctr("snapshots", "--snapshotter", "imagefs", "ls").stdout.splitlines()[1:]
        rows = [line.split() for line in lines]
        return {row[0]: (row[1] if len(row) == 3 else "", row[-1]) for row in rows}

    def blobs(self) -> list[str]:
        """Digests of what lies in containerd's content store."""
        return self.ctr("content", "ls", "--quiet").stdout.split()

    def log(self, name: str = "snapshotter") -> str:
        return (self.folder / "logs" / f"{name}.log").read_text(errors="replace")

    # -- inner ---------------------------------------------------------------------------------------------------

    def _start(self, name: str, command: Sequence[str]) -> None:
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _until_it_listens(self, name: str, path: Path) -> None:
        def listens() -> bool:
            assert self._running[name].poll() is None, self.log(name)
            with socket.socket(socket.AF_UNIX) as probe:
                return probe.connect_ex(str(path)) == 0

        eventually(listens, name)

    def _serves_cri(self) -> bool:
        try:
            return bool(self.cri.version())
        except grpc.RpcError as error:
            if "not initialized yet" not in str(error):  # as it says for a moment
                raise
            return False

    def _remove_all(self) -> None:
        self.cri.remove_pods()
        for task in self.ctr("tasks", "ls", "--quiet").stdout.split():
            self.ctr("tasks", "kill", "--signal", "SIGKILL", task, check=False)
        eventually(lambda: all(" STOPPED" in line for line in self._tasks()), "the end of all tasks")
        for container in self.ctr("containers", "ls", "--quiet").stdout.split():
            self.ctr("tasks", "rm", container, check=False)
            self.ctr("containers", "rm", container)
        images = self.ctr("images", "ls", "--quiet").stdout.split()
        if images:
            self.ctr("images", "rm", "--sync", *images)

    def _unmount(self, *kept: Path) -> None:
        for mount in reversed(kernel.mounts()):
            if Path(mount.path).is_relative_to(self.folder) and Path(mount.path) not in kept:
                try:
                    kernel.unmount(mount.path, kernel.MNT_DETACH)
                except OSError:  # the daemon's helper, which ends by itself, may have been quicker
                    if kernel.find_mount(mount.path) is not None:
                        raise

    def _tasks(self) -> Iterator[str]:
        yield from self.ctr("tasks", "ls").stdout.splitlines()[1:]

    def _config(self) -> str:
        """The output of `imagefs snapshotter config`, and the settings that keep this containerd apart from others."""
        place = ["--socket", str(self.folder / "snapshotter.sock"), "--root", str(self.root)]
        block = self.imagefs("snapshotter", "config", *place, *self._options)
        head, version, tables = re.split(r"(version = [23])", block)
        if self._parallel:
            tables = tables.replace("[proxy_plugins.imagefs]", '[proxy_plugins.imagefs]\n  capabilities = ["rebase"]')
            tables += _PARALLEL
        return f"""{head}{version}
root = "{self.folder}/c/root"
state = "{self.folder}/c/state"
[grpc]
  address = "{self.socket}"
{tables}
{(_OWN_2 if version == "version = 2" else _OWN_3).format(pause=self._pause, folder=self.folder)}
[plugins."io.containerd.gc.v1.scheduler"]
  mutation_threshold = 100000  # garbage is collected when a test asks for it
"""


_OWN_2 = """
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
"""

_OWN_3 = """
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
"""
"""Of containerd 2.x, which otherwise uses a socket and a folder of the whole machine besides."""

_PARALLEL = """
[plugins."io.containerd.transfer.v1.local"]
  max_concurrent_unpacks = 4
[debug]
  level = "debug"
"""
"""The log says then of each image whether its layers were unpacked in this way."""
