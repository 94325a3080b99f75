"""Traces and plans: what starts touched of an image, and the blocks to fetch before they are asked for.

A trace says what the start of a workload touched, in order. A plan, which is made of traces, lists blocks of a stored
image in the order to fetch them, none twice. Both are canonical JSON in ASCII. docs/format.md tells every field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from imagefs.errors import FormatError
from imagefs.format import document, is_digest
from imagefs.format.erofs import BLOCK
from imagefs.format.inodes import DIGEST

__all__ = [
    "DEFAULT_WORKLOAD",
    "ENDS",
    "SIZE_LIMIT",
    "TOUCH_LIMIT",
    "Plan",
    "PlanRun",
    "Touch",
    "Trace",
    "check_workload",
    "path_from_text",
    "path_to_text",
]

EXTENT = 64 << 10
"""Most bytes of an extent. Images have extents of 16 KiB; those that version 0.1.0 built have extents of so many."""

DEFAULT_WORKLOAD = "default"

ENDS = ("ready", "marker", "time", "unmount")

SIZE_LIMIT = 256 << 20
"""Bytes of a document. A start that touches 10,000 extents makes about 1 MiB."""

TOUCH_LIMIT = 1 << 20
"""Touches in a document: 16 GiB of extents."""

_PATH_LIMIT = 64 << 10
_TEXT_LIMIT = 1024
_FACTS = ("image", "workload", "node", "started", "seconds", "ended_by", "complete", "reason")

_WORKLOAD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_ESCAPED = re.compile("[\udc80-\udcff]")

_PLAN_SIZE_LIMIT = 64 << 20
_RUN_LIMIT = 1 << 20
_BLOCK_LIMIT = 1 << 27  # of 128 KiB each: the 16 TiB that a device can have


class Touch(NamedTuple):
    """An extent that was touched: bytes [offset, offset + length) of the file at `path`, first after `ms`."""

    ms: int
    path: bytes
    offset: int
    length: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded start. `started` is wall-clock time in seconds since 1970, `seconds` how long it was recorded.

    ahead: numbers of the touches, ascending, that no file asked for: the kernel read them ahead on the device, whose
    layout decides what that reaches.
    """

    image: str
    workload: str
    node: str
    started: float
    seconds: float
    ended_by: str
    complete: bool
    reason: str
    touches: Sequence[Touch]
    ahead: Sequence[int] = ()

    @property
    def read(self) -> list[Touch]:
        """The touches that files asked for, as far as that is known."""
        ahead = set(self.ahead)
        return [touch for number, touch in enumerate(self.touches) if number not in ahead]

    @property
    def touched_bytes(self) -> int:
        """Of all extents together."""
        return sum(touch.length for touch in self.touches)

    def to_json(self) -> bytes:
        """The document. Raises FormatError where `from_json` would refuse it."""
        _check_trace(self)
        content = {
            "bootseer": "trace",
            "version": 1 if all(touch.offset % EXTENT == 0 for touch in self.touches) else 2,
            "image": self.image,
            "workload": self.workload,
            "node": self.node,
            "started": round(self.started, 3),
            "seconds": round(self.seconds, 3),
            "ended_by": self.ended_by,
            "complete": self.complete,
            "reason": self.reason,
            "touches": [[t.ms, path_to_text(t.path), t.offset, t.length, t.digest.hex()] for t in self.touches],
            **({"ahead": list(self.ahead)} if self.ahead else {}),
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Trace:
        """The inverse of `to_json`. Raises FormatError."""
        if len(data) > SIZE_LIMIT:
            raise FormatError(f"a trace of {len(data)} bytes is more than this program takes")
        with document(data, "trace", "trace", (1, 2)) as found:
            ahead = found.get("ahead", [])
            if not isinstance(found["touches"], list) or not isinstance(ahead, list):
                raise FormatError("the trace has no list of touches")
            if len(found["touches"]) > TOUCH_LIMIT:
                raise FormatError(f"a trace of {len(found['touches'])} touches is more than this program takes")
            touches = [_touch(*row) for row in found["touches"]]
            trace = cls(**{key: found[key] for key in _FACTS}, touches=touches, ahead=tuple(ahead))
            _check_trace(trace)
            return trace


def check_workload(workload: str) -> str:
    """The key itself. Raises FormatError for one that cannot be the name of an object."""
    if not isinstance(workload, str) or not _WORKLOAD.fullmatch(workload):
        raise FormatError(
            f"{str(workload)[:200]!r} is no key of a workload", hint="letters, digits, '.', '_' and '-', at most 128"
        )
    return workload


def path_to_text(path: bytes) -> str:
    """A path as documents have it."""
    text = path.replace(b"%", b"%25").decode("utf-8", "surrogateescape")
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]) - 0xDC00:02X}", text)


def path_from_text(text: str) -> bytes:
    """The inverse of `path_to_text`. Raises ValueError for what is no text."""
    return unquote_to_bytes(text)


def _touch(ms: Any, path: Any, offset: Any, length: Any, digest: Any) -> Touch:
    if not isinstance(path, str):
        raise FormatError("the trace has a path that is no text")
    return Touch(ms, path_from_text(path), offset, length, bytes.fromhex(digest))


def _check_trace(trace: Trace) -> None:
    texts = (trace.image, trace.workload, trace.node, trace.ended_by, trace.reason)
    if not all(isinstance(text, str) and len(text) <= _TEXT_LIMIT for text in texts):
        raise FormatError("the trace has a text that is none, or too long a one")
    if not is_digest(trace.image):
        raise FormatError("the trace names its image by no digest")
    check_workload(trace.workload)
    if trace.ended_by not in ENDS or not isinstance(trace.complete, bool) or trace.complete == bool(trace.reason):
        raise FormatError("the trace does not say how it ended")
    for number in (trace.started, trace.seconds):
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < 1e12:
            raise FormatError("the trace has a time that is none")
    if len(trace.touches) > TOUCH_LIMIT:
        raise FormatError(f"{len(trace.touches)} touches are more than a trace holds")
    last = 0
    for touch in trace.touches:
        _check_touch(touch)
        if touch.ms < last:
            raise FormatError("the trace's touches are not in order of time")
        last = touch.ms
    if not all(type(number) is int for number in trace.ahead) or (
        list(trace.ahead) != sorted({*trace.ahead} & set(range(len(trace.touches))))
    ):
        raise FormatError("the trace's numbers of what was read ahead are no numbers of touches")


def _check_touch(touch: Touch) -> None:
    for number in (touch.ms, touch.offset, touch.length):
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 62:
            raise FormatError("the trace has a touch that is none")
    if touch.offset % BLOCK or not 0 < touch.length <= EXTENT or len(touch.digest) != DIGEST:
        raise FormatError("the trace has a touch that is no extent")
    if not 0 < len(touch.path) <= _PATH_LIMIT or b"\0" in touch.path or touch.path.startswith(b"/"):
        raise FormatError("the trace has a path that is none")


class PlanRun(NamedTuple):
    """`blocks` blocks of 128 KiB from `first` on, of the device with that number, the first being 1."""

    device: int
    first: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Blocks to fetch for `workload` when the image with the manifest `image` is mounted, from `traces` starts."""

    image: str
    workload: str
    traces: int
    runs: Sequence[PlanRun]

    @property
    def blocks(self) -> int:
        return sum(run.blocks for run in self.runs)

    def of(self, device: int) -> Iterator[int]:
        """The numbers of one device's blocks, in order."""
        for run in self.runs:
            if run.device == device:
                yield from range(run.first, run.first + run.blocks)

    def to_json(self) -> bytes:
        """The document. Raises FormatError where `from_json` would refuse it."""
        _check_plan(self)
        content = {
            "bootseer": "plan",
            "version": 1,
            "image": self.image,
            "workload": self.workload,
            "traces": self.traces,
            "runs": [list(run) for run in self.runs],
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Plan:
        """The inverse of `to_json`. Raises FormatError."""
        if len(data) > _PLAN_SIZE_LIMIT:
            raise FormatError(f"a plan of {len(data)} bytes is more than this program takes")
        with document(data, "plan", "plan") as found:
            if not isinstance(found["runs"], list) or len(found["runs"]) > _RUN_LIMIT:
                raise FormatError("the plan has no list of runs, or too long a one")
            runs = [PlanRun(*run) for run in found["runs"]]
            plan = cls(found["image"], found["workload"], found["traces"], runs)
            _check_plan(plan)
            return plan


def _check_plan(plan: Plan) -> None:
    if not isinstance(plan.image, str) or not is_digest(plan.image):
        raise FormatError("the plan names its image by no digest")
    check_workload(plan.workload)
    if not _number(plan.traces) or len(plan.runs) > _RUN_LIMIT:
        raise FormatError("the plan contradicts itself")
    seen: dict[int, list[tuple[int, int]]] = {}
    for run in plan.runs:
        if not (all(map(_number, run)) and 0 < run.device < 1 << 16 and run.blocks):
            raise FormatError("the plan has a run that is none")
        if run.first + run.blocks > _BLOCK_LIMIT:
            raise FormatError("the plan has a run past the end of any device")
        seen.setdefault(run.device, []).append((run.first, run.blocks))
    for runs in seen.values():
        runs.sort()
        if any(first + blocks > after for (first, blocks), (after, _) in pairwise(runs)):
            raise FormatError("the plan has a block twice")


def _number(found: Any) -> bool:
    return isinstance(found, int) and not isinstance(found, bool) and found >= 0
