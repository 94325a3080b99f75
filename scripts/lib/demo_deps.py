"""imagefs: how long a job waits for what it installs at its start, on the first machine and on those after it.

The job installs a few packages by pip from the package index that pip is set to, into a directory, and imports them.
Each machine has a cache and a daemon of its own, and nothing of the packages; snapshots come over the same slow link as
images. Times are from the first command to the end of the imports.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from contextlib import closing
from pathlib import Path

from demo_images import IMAGEFS, Place
from demo_tools import Failed, command, say

from bench.cluster import ROOT
from imagefs.repository.images import Images
from imagefs.repository.snapshots import Snapshots
from imagefs.repository.store import StoreRepository
from stripefs.settings import StoreSettings
from stripefs.store.url import open_store

__all__ = ["demonstrate"]

PACKAGES = ("numpy", "pandas", "python-dateutil", "tzdata", "pyarrow", "pydantic", "pydantic-core", "annotated-types")
PACKAGES += ("typing-extensions", "typing-inspection")
MODULES = ("numpy", "pandas", "pyarrow.parquet", "pydantic")
PROGRAM = "import importlib, sys; sys.path.insert(0, sys.argv[1]); list(map(importlib.import_module, sys.argv[2:]))"

_PINS = ROOT / "bench/deps/requirements.txt"
_WITHIN = 60.0


def demonstrate(place: Place, folder: Path) -> None:
    """Start the job on four machines. Raises Failed, CalledProcessError."""
    pins = [pin for pin in _PINS.read_text().split() if pin.partition("==")[0] in PACKAGES]
    requirements = folder / "requirements.txt"
    requirements.write_text("".join(f"{pin}\n" for pin in pins))
    say("installs", ", ".join(pins))
    say("job", f"python, which imports {', '.join(MODULES)}")
    target, words = folder / "packages", ("--quiet", "--no-deps", "--no-cache-dir", "-r", str(requirements))
    here, there = place.put("snapshots"), place.link("snapshots")
    rows = [("pip install, on every machine", by_pip(target, words))]
    rows += [("imagefs deps pip, first: it installs and publishes", started(here, target, folder / "one", words))]
    await_snapshot(here, hot=False)
    shutil.rmtree(target)
    rows += [("second: mounted", started(there, target, folder / "two", words))]
    await_snapshot(here, hot=True)
    rows += [("third: what the second touched, in one stream", started(there, target, folder / "three", words))]
    print(f"\n{'':52}{'seconds':>10}")
    for what, seconds in rows:
        print(f"{what:52}{seconds:10.1f}")
    print()
    say("more", f"{IMAGEFS} deps --help; docs/deps.md")


def by_pip(target: Path, words: tuple[str, ...]) -> float:
    """Seconds until the job has what it needs without imagefs."""
    began = time.perf_counter()
    command(sys.executable, "-m", "pip", "install", "--target", target, *words)
    imports(target)
    seconds = time.perf_counter() - began
    shutil.rmtree(target)
    return seconds


def imports(target: Path) -> None:
    command(sys.executable, "-P", "-c", PROGRAM, target, *MODULES)


def started(store: str, target: Path, machine: Path, words: tuple[str, ...]) -> float:
    """Seconds until the job has what it needs on a machine whose disk is the empty folder `machine`."""
    own = {"IMAGEFS_CACHE": str(machine / "cache"), "IMAGEFS_RUNTIME": str(machine / "run")}
    began = time.perf_counter()
    ours = ("--store", store, "--target", str(target), "--python", sys.executable, "--allow-conflicts")
    command(IMAGEFS, "deps", "pip", *ours, *words, environment=own)
    imports(target)
    seconds = time.perf_counter() - began
    if json.loads(command(IMAGEFS, "status", "--json", environment=own))["images"]:
        command(IMAGEFS, "ready", target, environment=own)
        command(IMAGEFS, "umount", target, environment=own)
    return seconds


def await_snapshot(store: str, *, hot: bool) -> None:
    """It is published beside the job, and a hot device made of the first start that was mounted."""
    deadline = time.monotonic() + _WITHIN
    with closing(open_store(StoreSettings(url=store))) as opened:
        images = Images(StoreRepository(opened))
        while not any(images.manifest(one).base or not hot for one in Snapshots(images).images_named().values()):
            if time.monotonic() > deadline:
                raise Failed(f"{'no hot device was made' if hot else 'nothing was published'} within {_WITHIN:g} s")
            time.sleep(0.1)
