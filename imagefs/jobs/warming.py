"""The warming of one checkpoint: `python -m imagefs.jobs.warming`, its request as JSON on standard input.

While blocks that the start of the image touches are on their way, the checkpoint takes its share of the link and no
more (docs/jobs.md). Once these are here, or nobody can say, the checkpoint has the link to itself.

Trouble is told in one line on standard error and never ends a job, which reads what is not here through its mount. The
process ends with `imagefs run`.
"""

from __future__ import annotations

import fnmatch
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import NamedTuple

import trio

from imagefs.daemon.client import Client
from imagefs.settings import DaemonSettings
from stripefs import logs
from stripefs.cache.cached_store import LEAST
from stripefs.cli.cache_warming import STEP, Choose, Warmed, warm_tree
from stripefs.cli.output import guarded, tell
from stripefs.errors import MountError, StripefsError
from stripefs.settings import Settings, redact
from stripefs.startup_events import default_writer
from stripefs.store.base import Status, Store
from stripefs.units import format_size, shown

__all__ = ["Gate", "ImageLoad", "Look", "chosen", "newest", "trouble_lines"]

_LOOK_EVERY = 0.05
"""Seconds between looks at the image while the checkpoint waits for its share."""

_POINTERS = (b"/latest", b"/latest_checkpointed_iteration.txt")
"""Files in which DeepSpeed and Megatron name their newest checkpoint."""

_NUMBER = re.compile(rb"\d+$")

Files = Sequence[tuple[bytes, Status]]


class ImageLoad(NamedTuple):
    """Progress of the image. coming: blocks that its start touches are on their way. fetched: bytes, which only
    grow."""

    coming: bool
    fetched: int


Look = Callable[[], ImageLoad]


class Gate:
    """A pace for `warm_tree`: keeps the checkpoint within its share while the image comes.

    beside: bytes that were let through meanwhile. image: those that the image fetched until the gate opened for good.
    """

    def __init__(self, share: float, link_rate: int, look: Look, clock: Callable[[], float] = time.monotonic) -> None:
        self._share, self._link_rate, self._look, self._clock = share, link_rate, look, clock
        self._begun = clock()
        self._open = share >= 1
        self.beside = self.image = 0

    async def __call__(self, size: int, fetched: int) -> None:
        """Wait until `size` bytes more may be read, beyond the `fetched` ones."""
        while not self._open:
            found = await trio.to_thread.run_sync(self._look)
            self.image = found.fetched
            wanted = max(self.beside, fetched) + size
            if not found.coming:
                self._open = True
            elif wanted <= self._allowed(found.fetched):
                self.beside = wanted
                return
            else:
                await trio.sleep(_LOOK_EVERY)

    def _allowed(self, image: int) -> float:
        """Bytes that may have been read by now, but for the first step, which nothing has to come before."""
        if self._link_rate:
            return STEP + self._share * self._link_rate * (self._clock() - self._begun)
        return STEP + image * self._share / (1 - self._share)


class _Watched:
    """Looks at what the daemon does for the process `owner`."""

    def __init__(self, settings: DaemonSettings, owner: int) -> None:
        self._client, self._owner = Client(settings, starts=False), owner
        self._seen = False
        self._last, self._fetched = -1, 0

    def __call__(self) -> ImageLoad:
        try:
            status = self._client.status()
        except MountError:  # it is being started, or has ended
            return ImageLoad(not self._seen, self._fetched)
        blocks = status["blocks"]["fetched"]
        now = blocks["demand"]["stored"] + blocks["ahead"]["stored"]
        if self._last >= 0:  # a worker that was replaced counts anew
            self._fetched += now - self._last if now >= self._last else now
        self._last = now
        ours = [one for one in status["images"] if one.get("owner") == self._owner]
        self._seen = self._seen or bool(ours)
        return ImageLoad(not self._seen or any(one.get("fetching_ahead", True) for one in ours), self._fetched)


def chosen(which: str) -> Choose:
    """Takes files of a checkpoint: `all`, those of the `latest` one, or those whose path below the source matches a
    pattern, in which * also stands for several directories."""
    if which == "latest":
        return lambda store, files: newest(files, lambda path, size: _read(store, path, size))
    if which == "all":
        return lambda _store, files: files
    return lambda _store, files: [one for one in files if fnmatch.fnmatchcase(shown(one[0]).lstrip("/"), which)]


def newest(files: Files, read: Callable[[bytes, int], bytes]) -> Files:
    """The files of the newest checkpoint: in the directory that a pointer file names, by its name or its number, else
    in that with the greatest number at the end of its name; all where there is none."""
    tops = {path.split(b"/")[1] for path, _ in files if path.count(b"/") > 1}
    numbers = {top: int(found[0]) for top in tops if (found := _NUMBER.search(top))}
    top = max(numbers, key=lambda one: (numbers[one], one), default=b"")
    for path, status in files:
        if path in _POINTERS and status.length < 4096:
            said = read(path, status.length).strip()
            by_number = (one for one, number in numbers.items() if said.isdigit() and number == int(said))
            top = said if said in tops else next(by_number, top)
    return [one for one in files if one[0].startswith(b"/" + top + b"/")] if top else files


def trouble_lines(found: Warmed, strange: int, which: str) -> list[str]:
    """Lines about what is not on local disk now. strange: bytes of large files that the cache keeps nothing of."""
    lines = []
    for paths, why in (
        ([path for path, _ in found.trouble], f"is not warmed: {found.trouble[0][1]}" if found.trouble else ""),
        (found.missing, "does not stay on local disk"),
    ):
        if paths:
            more = f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
            lines.append(f"{shown(paths[0])} {why}{more}")
    if strange:
        lines.append(
            f"{format_size(strange)} are in files that the cache does not keep; those of a store without ids, such as "
            "S3, it keeps with --checkpoint-option cache_trust_mtime"
        )
    if not found.files and which not in ("all", "latest"):
        lines.append(f"--checkpoint-warm {which} matches no file")
    return lines


def _read(store: Store, path: bytes, size: int) -> bytes:
    with closing(store.open(path)) as handle:
        return bytes(handle.read(0, size)) if size else b""


def main() -> int:
    request = json.loads(sys.stdin.readline())
    settings = Settings.from_json(request["settings"])
    source = redact(settings.store.url)
    logs.configure("text", "error")
    events = default_writer("imagefs")
    watched = _Watched(DaemonSettings.from_json(request["daemon"]), int(request["owner"]))
    watched()  # fetches of the image are counted from now on
    events.instant("checkpoint", "warm", mount=settings.mount.mountpoint)
    gate = Gate(float(request["share"]), int(request["link_rate"]), watched)
    files: list[tuple[bytes, Status]] = []

    def choose(store: Store, there: Files) -> Files:
        files.extend(chosen(str(request["files"]))(store, there))
        return files

    try:
        found, _ = warm_tree(settings, b"/", gate, lambda _found, _file: None, choose)
    except StripefsError as error:
        told = [f"--checkpoint {source} is not warmed: {error.message}"]
        events.instant("checkpoint", "warmed", error=type(error).__name__)
    else:
        unkept = {*found.unkept}
        strange = sum(status.length for path, status in files if path in unkept and status.length >= LEAST)
        told = [f"--checkpoint {source}: {line}" for line in trouble_lines(found, strange, str(request["files"]))]
        events.instant(
            "checkpoint",
            "warmed",
            bytes=found.size,
            cache_bytes=found.here_before,
            store_bytes=found.fetched,
            beside_image_bytes=gate.beside,
            image_bytes=gate.image,
        )
    events.close()
    sys.stdin.read()  # until the mount is there
    for line in told:
        tell(line, program="imagefs")
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main, debug=False, program="imagefs"))
