"""`python -m imagefs.trace.finalize`: what was recorded becomes a trace in the store, and the plan learns from it.

A process of its own, so that neither its time nor its memory is the daemon's. On standard input it takes one JSON
object:

    raw         path of the raw form of a `Recorder`, deleted in the end
    folder      local folder that keeps traces and plans where the store cannot be written
    store       the fields of `StoreSettings`
    image       digest of the manifest that was mounted
    metadata    path of its EROFS image, in the folder of all of them
    workload, node, started, seconds, ended_by    as in the trace
    reason      why the record is not complete, "" (or left out) when it is
    mount       an inherited descriptor of a mount of the image, -1 (or left out) for none

The mount tells which touches the kernel only read ahead. A record holds what reached the daemon. Below EROFS the kernel
reads ahead on the device, past the ends of files and of what was asked for, and a record cannot tell that apart. The
page cache of the EROFS mount above can: it holds what was read of each file, and of pages that were evicted it
remembers that they were there. cachestat(2) counts both (Linux 6.5) and reads nothing. Where it or the mount is not to
be had, and where so little of a record is in memory that somebody must have emptied the caches, nothing counts as read
ahead.

A complete trace is stored, those of the same image and workload but the newest are removed, and the plan of the image
that was mounted is made from the rest: again, until no other start has stored a trace meanwhile. Each stores its trace
before it lists them, so the last who writes the plan has seen all. A trace that is not complete, or empty, only stays
in the local folder. On standard output comes one JSON object: `trace` (its name), `stored` (the URL of the store or of
the folder), `complete`, `extents`, `bytes`, and where a plan was made `plan_traces` and `plan_blocks`. An error is one
line on standard error and its exit code; whatever was stored by then is whole, and `raw` is there.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from imagefs.format.trace import TOUCH_LIMIT, Touch, Trace
from imagefs.repository.images import Images
from imagefs.repository.store import open_repository
from imagefs.repository.traces import KEEP, Traces, local_traces
from imagefs.trace.planner import resolve
from imagefs.trace.recorder import Recorder
from imagefs.trace.references import TracedImage, open_image, plan_for
from stripefs.errors import ConfigError, StoreError, StripefsError
from stripefs.osutil import check
from stripefs.retry import RetryPolicy, retry
from stripefs.settings import StoreSettings, store_settings

__all__ = ["Look", "RecordingFacts", "finish", "main", "read_ahead", "unread"]

_log = logging.getLogger(__name__)

_AGAIN = RetryPolicy(tries=4, first=1.0, longest=4.0)
"""A store that does not answer is asked again, for some 7 seconds."""

_LEAST = 0.2
"""The share of a record's bytes that is in memory after any start: 1 MiB of read-ahead follows reads of 4 KiB only
where they are far apart. Measured: 0.55 for imports of numpy, scipy and pandas."""

_CACHESTAT = 451
"""The number of the system call, shared by all architectures."""

_RANGE = struct.Struct("=QQ")
_COUNTS = struct.Struct("=5Q")
"""Pages cached, dirty, under write-back, evicted, recently evicted."""

_libc = ctypes.CDLL(None, use_errno=True)

Look = Callable[[bytes, Sequence[tuple[int, int]]], list[bool]]
"""Tells for a file which of these ranges (offset, length) were read. Raises OSError."""


@dataclass(frozen=True, slots=True)
class RecordingFacts:
    """Facts about a recorded start, as standard input tells them."""

    raw: Path
    folder: Path
    store: StoreSettings
    image: str
    metadata: Path
    workload: str
    node: str
    started: float
    seconds: float
    ended_by: str
    reason: str = ""
    mount: int = -1

    @classmethod
    def from_json(cls, text: str) -> RecordingFacts:
        """Keys that are not known are left out. Raises ConfigError."""
        try:
            given: dict[str, Any] = json.loads(text)
            return cls(
                Path(given["raw"]),
                Path(given["folder"]),
                store_settings(given["store"]),
                str(given["image"]),
                Path(given["metadata"]),
                str(given["workload"]),
                str(given["node"]),
                round(float(given["started"]), 3),
                round(float(given["seconds"]), 3),
                str(given["ended_by"]),
                str(given.get("reason") or ""),
                int(given.get("mount", -1)),
            )
        except KeyError as error:
            raise ConfigError(f"standard input does not say {error}") from error
        except (ValueError, TypeError, RecursionError) as error:
            raise ConfigError(f"standard input is not what is expected: {error}") from error


def main() -> int:
    """The program; its exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    try:
        sys.stdout.write(json.dumps(finish(RecordingFacts.from_json(sys.stdin.read()))) + "\n")
    except StripefsError as error:
        return _fail(str(error), error.exit_code)
    except OSError as error:
        return _fail(str(error), 1)
    except Exception as error:  # noqa: BLE001 the border of the program: its caller gets one line, never a traceback
        return _fail(f"internal error: {type(error).__name__}: {error}", 1)
    return 0


def finish(facts: RecordingFacts) -> dict[str, Any]:
    """Do it; what goes to standard output. Raises StripefsErrors and OSErrors."""
    recorder = Recorder.from_bytes(facts.raw.read_bytes())
    repository = retry(lambda: open_repository(facts.store), _AGAIN)
    try:
        opened = retry(lambda: open_image(Images(repository), facts.image, facts.metadata.parent), _AGAIN)
        trace = _trace(recorder, opened, facts)
        with local_traces(facts.folder) as local:
            done = _keep(trace, opened, Traces(repository), local)
    finally:
        repository.close()
    facts.raw.unlink(missing_ok=True)
    return done


def _trace(recorder: Recorder, opened: TracedImage, facts: RecordingFacts) -> Trace:
    touches = resolve(recorder, opened.target)
    reason = facts.reason
    if recorder.full or len(touches) > TOUCH_LIMIT:
        reason = reason or "it touched more than a trace holds"
    return Trace(
        opened.base,
        facts.workload,
        facts.node,
        facts.started,
        facts.seconds,
        facts.ended_by,
        not reason,
        reason,
        touches[:TOUCH_LIMIT],
        read_ahead(touches[:TOUCH_LIMIT], facts.mount) if facts.mount >= 0 else (),
    )


def _keep(trace: Trace, opened: TracedImage, remote: Traces, local: Traces) -> dict[str, Any]:
    """Store the trace where it can be stored, and let the plan there learn from it."""
    useful = trace.complete and bool(trace.touches)
    place, name = _put(trace, remote, local) if useful else (local, local.put(trace))
    done = {
        "trace": name,
        "stored": place.repository.url,
        "complete": trace.complete,
        "extents": len(trace.touches),
        "bytes": trace.touched_bytes,
    }
    try:
        retry(lambda: place.prune(trace.image, trace.workload), _AGAIN)
    except StoreError as error:
        _log.warning("old traces stay: %s", error)
    if not useful:
        return done
    places = [remote, local] if place is local else [remote]
    while True:
        before = _names(trace, places)
        known = [one for place in places for one in _complete(trace, place)]
        distinct = {(one.started, one.node): one for one in (*known, trace)}
        newest = sorted(distinct.values(), key=lambda one: (one.started, one.node))[-KEEP:]
        plan, merged = plan_for(opened, trace.workload, newest)
        try:
            retry(partial(place.put_plan, plan), _AGAIN)
        except StoreError as error:
            _log.warning("the plan is kept in %s: %s", local.repository.url, error)
            local.put_plan(plan)
        if _names(trace, places) <= before:
            return done | {"plan_traces": merged.traces, "plan_blocks": plan.blocks}


def _names(trace: Trace, places: Sequence[Traces]) -> set[str]:
    """The traces that are stored of the same image and workload."""
    found: set[str] = set()
    for place in places:
        with contextlib.suppress(StoreError):  # then `_complete` finds none either
            found.update(retry(partial(place.names, trace.image, trace.workload), _AGAIN))
    return found


def _put(trace: Trace, remote: Traces, local: Traces) -> tuple[Traces, str]:
    """The place of the trace now, and its name."""
    try:
        return remote, retry(lambda: remote.put(trace), _AGAIN)
    except StoreError as error:
        _log.info("the trace is kept in %s: %s", local.repository.url, error)
        return local, local.put(trace)


def _complete(trace: Trace, place: Traces) -> list[Trace]:
    """The newest traces there of the same image and workload that a plan can be made from."""
    try:
        found = retry(lambda: place.newest(trace.image, trace.workload), _AGAIN)
    except StoreError as error:
        _log.info("no other traces from %s: %s", place.repository.url, error)
        return []
    return [one for one in found if one.complete and one.touches]


def _fail(what: str, code: int) -> int:
    sys.stderr.write("imagefs.trace.finalize: " + " ".join(what.split()) + "\n")
    return code


def read_ahead(touches: Sequence[Touch], mount: int) -> list[int]:
    """The numbers of those of which no file read a page, ascending, as the mount with this descriptor tells; none where
    it cannot tell."""
    try:
        return unread(touches, lambda file, ranges: _look(mount, file, ranges))
    except OSError:
        return []


def unread(touches: Sequence[Touch], look: Look) -> list[int]:
    """The numbers of those that `look` says were not read; none where these are too many to be true. Raises what `look`
    raises."""
    files: dict[bytes, list[int]] = {}
    for number, touch in enumerate(touches):
        files.setdefault(touch.path, []).append(number)
    was_read = bytearray(len(touches))
    for path, numbers in files.items():
        ranges = [(touches[number].offset, touches[number].length) for number in numbers]
        for number, answer in zip(numbers, look(path, ranges), strict=True):
            was_read[number] = answer
    read = sum(touch.length for touch, answer in zip(touches, was_read, strict=True) if answer)
    if read < _LEAST * sum(touch.length for touch in touches):
        return []
    return [number for number, answer in enumerate(was_read) if not answer]


def _look(mount: int, path: bytes, ranges: Sequence[tuple[int, int]]) -> list[bool]:
    """As `Look`, below the root of `mount`. The file is opened, which reads no data of it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=mount)
    try:
        return [_was_read(descriptor, offset, length) for offset, length in ranges]
    finally:
        os.close(descriptor)


def _was_read(descriptor: int, offset: int, length: int) -> bool:
    counts = ctypes.create_string_buffer(_COUNTS.size)
    check(_libc.syscall(ctypes.c_long(_CACHESTAT), descriptor, _RANGE.pack(offset, length), counts, 0))
    cached, _, _, evicted, _ = _COUNTS.unpack(counts.raw)
    return bool(cached or evicted)


if __name__ == "__main__":
    sys.exit(main())
