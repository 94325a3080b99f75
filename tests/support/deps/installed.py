"""Something installed, without an installer: a package in a directory, and its snapshot in a store."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

from imagefs.build.content import scan
from imagefs.build.image import build
from imagefs.daemon import processes
from imagefs.daemon.client import Client
from imagefs.daemon.protocol import Recording
from imagefs.daemon.protocol import SnapshotUse as Wanted
from imagefs.deps.engine import MountedSnapshot, mount_snapshot
from imagefs.format.documents import Snapshot, key_digest
from imagefs.repository.snapshots import Snapshots
from imagefs.settings import TreeOptions
from stripefs.settings import StoreSettings
from tests.support.images.stores import images_in
from tests.tools.imagefs_daemon import Service

__all__ = ["imported", "install", "published", "snapshots_in", "use_here"]


def install(target: Path, value: int = 7, seed: int = 1) -> Path:
    """A package `heavy` with VALUE and a large file, in a new directory."""
    package = target / "heavy"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"VALUE = {value}\n")
    (package / "data.bin").write_bytes(random.Random(seed).randbytes(1 << 20))
    return target


def snapshots_in(store: Path) -> Snapshots:
    return Snapshots(images_in(store))


def published(target: Path, store: Path, *, at: Path | None = None) -> str:
    """The directory as a snapshot in the store, for another path where it is given; its name."""
    snapshots, key = snapshots_in(store), {"schema": 1, "target": str(at), "from": str(target)}
    root, contents = scan(str(target))
    report = build(root, contents, snapshots.images, source=key_digest(key))
    assert snapshots.put(Snapshot(key, report.digest, "host", (str(at or target),), time.time(), 0.1))
    return key_digest(key)


def use_here(
    service: Service,
    store: Path,
    name: str,
    target: Path,
    *users: int,
    kept: bool = False,
    recorded: bool = False,
    plane: Literal["auto", "erofs", "tree"] = "auto",
) -> MountedSnapshot | None:
    """Use it for these processes."""
    wanted = Wanted(name, tuple((pid, processes.began(pid)) for pid in users), kept)
    recording = Recording("deps", off=not recorded)
    client = Client(service.settings)
    return mount_snapshot(
        client, StoreSettings(url=str(store)), wanted, str(target), recording, TreeOptions(plane=plane)
    )


def imported(target: Path) -> subprocess.CompletedProcess[str]:
    """Run a job that imports the package."""
    script = "import heavy; print(heavy.VALUE, len(open(heavy.__path__[0] + '/data.bin', 'rb').read()))"
    environment = {**os.environ, "PYTHONPATH": str(target)}
    return subprocess.run([sys.executable, "-P", "-c", script], env=environment, capture_output=True, text=True)
