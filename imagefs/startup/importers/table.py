"""CSV whose columns the user maps to fields: `node`, `begin`, `end`, `seconds`, …, or `STAGE.begin` for wide tables."""

from __future__ import annotations

import csv
import io
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from imagefs.errors import FormatError
from imagefs.startup.importers.events import Given, Imported, moment_ns, time_ns
from stripefs.startup_events import KINDS, STAGES

__all__ = ["read"]

_TEXTS = ("job", "run", "node", "stage", "name", "kind", "span", "parent")
_NUMBERS = ("attempt", "rank")
_MOMENTS = ("begin", "end", "seconds", "at")
_UNITS = {"unix": 10**9, "unix_ms": 10**6, "unix_us": 1000, "unix_ns": 1}


def read(text: str, imported: Imported) -> None:
    given = imported.given
    rows = csv.DictReader(io.StringIO(text), delimiter=given.delimiter, strict=True)
    try:
        heads = rows.fieldnames or []
    except csv.Error as error:
        raise FormatError(f"the first line of {imported.file} is not CSV: {error}", hint="check --delimiter") from error
    _check(given, heads, imported)
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            imported.reject(rows.line_num, str(error))
            continue
        if row is None:
            return
        with imported.row(rows.line_num):
            if None in row or None in row.values():
                raise ValueError(f"the first line has {len(heads)} fields, and this one has not")
            _row({field: row[head] for head, field in given.columns.items() if row[head]}, imported)


def _check(given: Given, heads: Any, imported: Imported) -> None:
    missing = [head for head in given.columns if head not in heads]
    if missing or not given.columns:
        what = f"has no column {missing[0]!r}" if missing else "has columns that nothing maps to fields"
        raise FormatError(f"{imported.file} {what}", hint=f"its columns are {', '.join(heads)}; see --map")
    for name in [*given.columns.values(), *given.constants]:
        stage, _, moment = name.partition(".")
        of_stage = stage in STAGES and moment in _MOMENTS
        if name not in (*_TEXTS, *_NUMBERS, *_MOMENTS) and not of_stage and not (stage == "facts" and moment):
            known = ", ".join((*_TEXTS, *_NUMBERS, *_MOMENTS))
            raise FormatError(f"{name} is no field of an event", hint=f"fields are {known}, facts.NAME and STAGE.begin")


def _row(cells: dict[str, str], imported: Imported) -> None:
    fields: dict[str, Any] = {**imported.given.constants, **cells}
    own = {key: fields[key] for key in _TEXTS if key in fields} | {
        key: _number(key, fields[key]) for key in _NUMBERS if key in fields
    }
    stage, name, kind = own.pop("stage", ""), own.pop("name", ""), own.pop("kind", "work")
    if kind not in KINDS:
        raise ValueError(f"the kind {kind!r} is neither work nor wait")
    facts = {key[6:]: _value(value) for key, value in fields.items() if key.startswith("facts.")}
    wide = {key.partition(".")[0] for key in fields if key.partition(".")[0] in STAGES and "." in key}
    spans = [(one, *_moments(fields, f"{one}.", imported)) for one in sorted(wide, key=STAGES.index)]
    if any(key in fields for key in _MOMENTS):
        found = imported.stage_of(stage)
        if not found:
            raise ValueError(f"the stage {stage!r} is none of ours; map it with --stage '{stage}=…'")
        spans.append((found, *_moments(fields, "", imported)))
    if not spans:
        raise ValueError("the row has no time")
    for one, begin, end in spans:
        if end is None:
            imported.event("instant", one, name, begin, kind=kind, facts=facts, **own)
        else:
            imported.span(one, name, begin, end, kind=kind, facts=facts, **own)


def _moments(fields: dict[str, Any], prefix: str, imported: Imported) -> tuple[int, int | None]:
    """Begin and end; no end for an instant. Two of begin, end and seconds give the third."""
    texts = {key: fields.get(prefix + key, "") for key in _MOMENTS}
    begin, end, at = (_time(texts[key], imported.given) if texts[key] else None for key in ("begin", "end", "at"))
    lasted = _nanoseconds(texts["seconds"], 10**9) if texts["seconds"] else None
    if at is not None:
        return at, None
    if begin is None and end is not None and lasted is not None:
        begin = end - lasted
    if end is None and begin is not None and lasted is not None:
        end = begin + lasted
    if begin is None or end is None:
        raise ValueError(f"{prefix or 'the row '}needs two of begin, end and seconds")
    return begin, end


def _time(text: str, given: Given) -> int:
    if given.time_format == "iso":
        return time_ns(text, given.zone)
    if given.time_format in _UNITS:
        return _nanoseconds(text, _UNITS[given.time_format])
    return moment_ns(datetime.strptime(text, given.time_format), given.zone)


def _nanoseconds(text: str, unit: int) -> int:
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a number") from None
    if not number.is_finite() or number < 0 or number.adjusted() > 20:  # nanoseconds have 19 digits
        raise ValueError(f"{text} is not a time")
    return int(number * unit)


def _number(key: str, text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"the {key} {text!r} is not a number")
    return int(text)


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
