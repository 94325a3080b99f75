"""The plan: which blocks of a stored image to fetch before they are asked for, in what order.

Canonical JSON (ASCII, sorted keys, no spaces):

    bootseer   "plan", and `version` 1
    image      digest of the manifest, of the image exactly as it is mounted
    workload   key of the traces it was made from
    traces     how many those were
    runs       a list for each run of blocks, in order: number of the device, first block of 128 KiB, blocks

No block comes twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from imagefs.errors import FormatError
from imagefs.format import first_line, is_digest
from imagefs.format.trace import check_workload

__all__ = ["Plan", "PlanRun"]

VERSION = 1

_SIZE_LIMIT = 64 << 20
_RUN_LIMIT = 1 << 20
_BLOCK_LIMIT = 1 << 27  # of 128 KiB each: the 16 TiB that a device can have


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
        _check(self)
        document = {
            "bootseer": "plan",
            "version": VERSION,
            "image": self.image,
            "workload": self.workload,
            "traces": self.traces,
            "runs": [list(run) for run in self.runs],
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Plan:
        """The inverse of `to_json`. Raises FormatError."""
        if len(data) > _SIZE_LIMIT:
            raise FormatError(f"a plan of {len(data)} bytes is more than this program takes")
        try:
            document = json.loads(data)
            if document["bootseer"] != "plan":
                raise FormatError("this document is no plan")
            if document["version"] != VERSION:
                raise FormatError(f"a plan of version {document['version']!r}, which this program does not know")
            if not isinstance(document["runs"], list) or len(document["runs"]) > _RUN_LIMIT:
                raise FormatError("the plan has no list of runs, or too long a one")
            runs = [PlanRun(*run) for run in document["runs"]]
            plan = cls(document["image"], document["workload"], document["traces"], runs)
            _check(plan)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            message = first_line(error)
            raise FormatError(f"the plan is damaged: {message}") from error
        return plan


def _check(plan: Plan) -> None:
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
