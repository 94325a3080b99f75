"""imagefs: how long a job waits for what it installs at its start, on the first machine and on those after it.

The job installs a few packages by pip from a package index, into a directory, and imports them. Each machine has a
cache and a daemon of its own, and nothing of the packages; wheels and snapshots come over the same slow link as images.
Times are from the first command to the end of the imports.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from demo_images import IMAGEFS, Place, slow
from demo_tools import Failed, command, say

from bench.deps.wheels import fetch, lay_out, size_of
from bench.harness import ROOT
from bench.startup.fleet import WHEELS
from imagefs.repository.images import Images
from imagefs.repository.snapshots import Snapshots
from imagefs.repository.store import StoreRepository
from stripefs.errors import StripefsError
from stripefs.settings import StoreSettings
from stripefs.store.base import Store
from stripefs.store.url import open_store

__all__ = ["await_snapshot", "demonstrate", "package_index", "pins_of"]

PACKAGES = ("numpy", "pandas", "python-dateutil", "tzdata", "pydantic", "pydantic-core", "annotated-types")
PACKAGES += ("typing-extensions", "typing-inspection")
MODULES = ("numpy", "pandas", "pydantic")
PROGRAM = "import importlib, sys; sys.path.insert(0, sys.argv[1]); list(map(importlib.import_module, sys.argv[2:]))"

_PINS = ROOT / "bench/deps/requirements.txt"
_WITHIN = 60.0
_PIECE = 8 << 20


def demonstrate(place: Place, folder: Path) -> None:
    """Start the job on four machines. Raises Failed, CalledProcessError."""
    pins = pins_of(PACKAGES)
    requirements = folder / "requirements.txt"
    requirements.write_text("".join(f"{pin}\n" for pin in pins))
    say("installs", ", ".join(pins))
    say("job", f"python, which imports {', '.join(MODULES)}")
    target, words = folder / "packages", ("--quiet", "--no-deps", "--no-cache-dir", "-r", str(requirements))
    here, there = place.put("snapshots"), place.link("snapshots")
    with package_index(pins, folder / "index"):
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


def pins_of(packages: Sequence[str]) -> list[str]:
    """NAME==VERSION of each."""
    return [pin for pin in _PINS.read_text().split() if pin.partition("==")[0] in packages]


@contextmanager
def package_index(pins: Sequence[str], folder: Path) -> Iterator[dict[str, str]]:
    """A package index of these wheels behind the link. pip uses it and nothing else by the variables that are answered,
    and that this process has meanwhile. Wheels are fetched once, by pip's settings on this machine. Raises BenchError.
    """
    fetch(pins, WHEELS, lambda line: say("index", line))
    lay_out(WHEELS, pins, folder)
    say("index", f"{len(pins)} wheels of {size_of(WHEELS, pins) / 1e6:.0f} MB, served over the same link")
    before = dict(os.environ)
    with closing(open_store(StoreSettings(url=slow(folder).link("")))) as store:
        server = ThreadingHTTPServer(("127.0.0.1", 0), lambda *words: _Handler(store, *words))
        thread = threading.Thread(target=server.serve_forever, args=(0.1,))
        thread.start()
        settings = {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": f"http://127.0.0.1:{server.server_port}/simple/",
            "PIP_TRUSTED_HOST": "127.0.0.1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_ROOT_USER_ACTION": "ignore",
            "PIP_NO_DEPS": "1",
        }
        for name in [name for name in before if name.startswith("PIP_")]:
            del os.environ[name]
        os.environ.update(settings)
        try:
            yield settings
        finally:
            os.environ.clear()
            os.environ.update(before)
            server.shutdown()
            thread.join()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """Answers files of a store; of a directory its page."""

    def __init__(self, store: Store, *words: object) -> None:
        self._store = store
        super().__init__(*words)

    def do_GET(self) -> None:
        path = unquote(self.path).encode() + (b"index.html" if self.path.endswith("/") else b"")
        try:
            handle = self._store.open(path)
        except StripefsError as error:
            self.send_error(404, error.message)
            return
        with closing(handle), suppress(ConnectionError):  # pip has gone, as when the demonstration is interrupted
            size = handle.status.length
            self.send_response(200)
            self.send_header("Content-Type", "text/html" if path.endswith(b".html") else "application/octet-stream")
            self.send_header("Content-Length", str(size))
            self.end_headers()
            for begin in range(0, size, _PIECE):
                self.wfile.write(handle.read(begin, min(_PIECE, size - begin)))

    def log_message(self, *_words: object) -> None:
        pass


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
