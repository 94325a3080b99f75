"""The basis of all importers: a place for events and rejected rows, and parsers of times, durations and JSON."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from stripefs.startup_events import STAGES, VERSION

__all__ = ["Given", "Imported", "Rejected", "duration_ns", "json_objects", "moment_ns", "time_ns"]

_TIME = re.compile(
    r"(?:[A-Z][a-z]{2} )?(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9})\d*)?"
    r"(?: ?(Z|[+-]\d\d(?::?\d\d)?))?(?: (\w+))?"
)
_PART = r"(\d{1,18}(?:\.\d+)?)\s*(d|h|min|ms|us|µs|μs|ns|m|s)"
_BRACE = re.compile(r"^\s*\{", re.MULTILINE)
_PAIR = r'"\w+"\s*:\s*(?:"[^"]*"|\{[^{}]*\})'
_BETWEEN = re.compile(rf'(?:[\s,\[]|\{{\s*(?:{_PAIR}\s*,\s*)*"items"\s*:\s*\[|\](?:\s*,\s*{_PAIR})*\s*\}}?)*')
"""Text between objects: brackets and commas of lists, and the other keys of a list of Kubernetes."""

_UNITS = {"d": 86400 * 10**9, "h": 3600 * 10**9, "min": 60 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6,
          "us": 1000, "µs": 1000, "μs": 1000, "ns": 1}  # fmt: skip


@dataclass(frozen=True)
class Given:
    """Statements of the user about the data. Job, run and node replace those that the data name.

    zone: of times that name none; None is the zone of this host. origin: nanoseconds since 1970 of the moment that
    times without a date count from. stages: patterns of names to stages. columns, constants and time_format: of CSV.
    """

    job: str = ""
    run: str = ""
    node: str = ""
    zone: tzinfo | None = None
    origin: int | None = None
    stages: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)
    time_format: str = "iso"
    delimiter: str = ","


class Rejected(NamedTuple):
    """A row that could not be used, and the reason."""

    file: Path
    line: int
    why: str


class Imported:
    """Events made of others' data, with the rows that gave none. An importer adds to it."""

    def __init__(self, kind: str, given: Given) -> None:
        self.kind, self.given = kind, given
        self.file = Path()
        self.events: list[dict[str, Any]] = []
        self.rejected: list[Rejected] = []
        self.passed_over: dict[str, int] = {}

    def reject(self, line: int, why: str) -> None:
        self.rejected.append(Rejected(self.file, line, why[:200]))

    @contextlib.contextmanager
    def row(self, line: int, of: str = "", what: str = "") -> Iterator[None]:
        """Reject the row where the block finds that it is not as it must be. of, what: words for the reason."""
        try:
            yield
        except KeyError as error:
            self.reject(line, f"{error.args[0]}{of} is missing")
        except (AttributeError, TypeError, ValueError) as error:
            self.reject(line, f"{what}{error}")

    def pass_over(self, what: str) -> None:
        """Count a row that is well-formed and says nothing about a start."""
        self.passed_over[what] = self.passed_over.get(what, 0) + 1

    def event(self, event: str, stage: str, name: str, wall_ns: int, *, facts: Mapping[str, Any] | None = None,
              **fields: Any) -> None:  # fmt: skip
        """Add one event; empty fields are left out. Raises ValueError for a number that no event can have."""
        given = {"job": self.given.job, "run": self.given.run, "node": self.given.node}
        fields |= {key: value for key, value in given.items() if value}
        whole = {"v": VERSION, "wall_ns": wall_ns, "event": event, "stage": stage, "name": name,
                 "source": f"import:{self.kind}", **fields,
                 "facts": {key: _finite(value) for key, value in (facts or {}).items()}}  # fmt: skip
        if wall_ns < 0 or any(isinstance(value, int) and value >= 1 << 63 for value in whole.values()):
            raise ValueError("a time or number is out of range")
        self.events.append({key: value for key, value in whole.items() if value not in ("", None, {})})

    def span(self, stage: str, name: str, begin: int, end: int, *, kind: str = "work", span: str = "",
             parent: str = "", facts: Mapping[str, Any] | None = None, **fields: Any) -> str:  # fmt: skip
        """Add the begin and the end of a span; its id, which follows from its fields. Raises ValueError."""
        if not 0 <= begin <= end < 1 << 63:
            raise ValueError("it ends before it begins, or its time is out of range")
        if not span:
            text = json.dumps(
                [self.kind, stage, name, begin, end, kind, parent, fields, facts], sort_keys=True, default=str
            )
            span = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        self.event("begin", stage, name, begin, span=span, parent=parent, kind=kind, **fields)
        self.event("end", stage, name, end, span=span, kind=kind, facts=facts, **fields)
        return span

    def stage_of(self, name: str) -> str:
        """The stage of a name: that of the first pattern of the user that fits, or of the same name; "" if none."""
        from fnmatch import fnmatchcase

        found = next((stage for pattern, stage in self.given.stages.items() if fnmatchcase(name, pattern)), name)
        return found if found in STAGES else ""


def _finite(value: Any) -> Any:
    """A fact as JSON can say it: `nan` and `inf` are texts."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def time_ns(text: str, zone: tzinfo | None = None) -> int:
    """Nanoseconds since 1970 of a time as RFC 3339, Slurm, systemd or Go writes it. Raises ValueError."""
    found = _TIME.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is not a time")
    day, clock, fraction, offset, word = found.groups()
    if word and not offset:
        if word not in ("UTC", "GMT"):
            raise ValueError(f"{text!r} names a zone by letters that several zones share")
        offset = "Z"
    moment = datetime.fromisoformat(f"{day}T{clock}{offset or ''}")
    return moment_ns(moment, zone) + int((fraction or "0").ljust(9, "0"))


def moment_ns(moment: datetime, zone: tzinfo | None) -> int:
    """Nanoseconds since 1970; a moment without a zone is in this one, None is that of this host."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone) if zone else moment.astimezone()
    past = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (past.days * 86400 + past.seconds) * 10**9 + past.microseconds * 1000


def duration_ns(text: str) -> int:
    """Nanoseconds of a duration as Go (`1m2.5s`) or systemd (`1min 2.5s`) writes it. Raises ValueError."""
    if not re.fullmatch(rf"\s*(?:{_PART}\s*)+", text):
        raise ValueError(f"{text!r} is not a duration")
    return sum(int(Decimal(number) * _UNITS[unit]) for number, unit in re.findall(_PART, text))


def json_objects(text: str, imported: Imported) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each JSON object of a text with its line: one a line, several after one another, or the items of lists.

    Text that is no JSON is rejected, and reading goes on at the next line that begins with a brace.
    """
    line, position, decoder = 1, 0, json.JSONDecoder()
    while True:
        start = _BETWEEN.match(text, position).end()  # type: ignore[union-attr]
        line += text.count("\n", position, start)
        if start == len(text):
            return
        try:
            value, position = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            imported.reject(line, "not JSON")
            following = _BRACE.search(text, text.find("\n", start) + 1 or len(text))
            position = following.start() if following else len(text)
        else:
            if isinstance(value, dict):
                yield line, value
            else:
                imported.reject(line, "not a JSON object")
        line += text.count("\n", start, position)
