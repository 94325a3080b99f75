"""Events out of JSON lines, as columns.

`load` parses blocks of many lines with pyarrow, which is faster than Python's json. A block that pyarrow refuses is
halved until the lines that it refuses are alone; those go through Python's json, and what cannot be used of them is
counted in `Problems`. Events are never repaired: a line is used as it is, without a field, or not at all.

Strings are codes into a list of words, the empty one being -1, and times are nanoseconds; both are numpy arrays.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import json as arrow_json

from imagefs.startup.report import Problem
from imagefs.startup.sources import HUGE, PIECE, File, read_files
from stripefs.errors import ConfigError

__all__ = ["Codes", "Events", "Ints", "Problems", "group_ids", "load"]

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]

_FEW = 16  # lines that are parsed one by one when pyarrow refuses them together
_INTS = ("v", "wall_ns", "mono_ns", "attempt", "rank", "pid", "seq")
_WORDS = ("event", "stage", "name", "job", "run", "node", "boot", "source", "span", "kind")
_FACT_INTS = ("cache_bytes", "store_bytes", "misses", "wait_ns", "events", "own_ns")
_FACT_WORDS = ("cause", "host", "key")
_FACTS = pa.struct(
    [(name, pa.int64()) for name in _FACT_INTS] + [(name, pa.string()) for name in _FACT_WORDS] + [("used", pa.bool_())]
)
_SERVICES = ("imagefs", "snapshotter", "stripefs")
"""Sources whose processes serve many starts, of which only some may be there: gaps in their numbers tell nothing."""
_SCHEMA = pa.schema(
    [(name, pa.int64()) for name in _INTS]
    + [(name, pa.string()) for name in _WORDS]
    + [("cut", pa.bool_()), ("facts", _FACTS)]
)
_ABSENT = {"rank": -1, "seq": -1}
_MOMENTS = 1 << 62  # ns, the year 2116
_LIMITS = {"wall_ns": _MOMENTS, "mono_ns": _MOMENTS, "seq": 1 << 53} | dict.fromkeys(_FACT_INTS, 1 << 53)
"""Numbers are from 0 to below these, or below 2**31: larger ones are no times and sizes, and sums of them overflow."""

MEANINGS = {
    "garbage": "lines that are no JSON object; left out",
    "truncated": "last lines that end in the midst of an event; left out",
    "huge line": f"lines of more than {HUGE} bytes; left out",
    "surrogate": "lines with half of a surrogate pair, which is shown as '?'",
    "bad field": "fields of the wrong type, or numbers out of range; the event is used without them",
    "not an event": "objects without event, stage or time; left out",
    "damaged file": "files that cannot be read, or only in part",
    "duplicate": "events that were there already (same writer, number and time); left out",
    "newer version": "events of a schema that is newer than this program; what it knows of them is used",
    "no version": "events that name no version of the schema",
    "cut": "events that lost their facts because the line was too long",
    "lost": "events missing from the numbers of a job's processes, dropped ones included",
    "dropped": "events that processes say they could not write",
    "out of order": "events written after a later one of the same process",
    "no monotonic clock": "events with a wall clock only; their durations follow from it",
    "no run": "events of a whole node that name no run; each counts for the start that ended next on its node",
    "no start": "events that name no run, of nodes that no start names; left out",
    "end without begin": "ends whose begin is missing; left out",
    "unfinished": "spans without an end; shown, not counted in durations",
    "late": "events after the end of the start they belong to; not counted in it",
}
"""Each kind of problem, and what became of the events."""


class Problems:
    """Counts what is wrong with events, with the first example of each kind."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}

    def note(self, kind: str, example: str = "", count: int = 1) -> None:
        if count > 0:
            self._counts[kind] += int(count)
            if example:
                self._examples.setdefault(kind, example)

    def listed(self) -> list[Problem]:
        """In the order of MEANINGS."""
        return [
            Problem(kind, self._counts[kind], meaning, self._examples.get(kind, ""))
            for kind, meaning in MEANINGS.items()
            if self._counts[kind]
        ]


@dataclass(frozen=True, slots=True)
class Events:
    """Events as columns, each event once. ints: v, wall_ns, mono_ns, attempt, rank (-1: none), pid, seq, the facts that
    are numbers (0: absent), and `used` (1: absent); codes: positions in `words` of the same name (-1: the empty word).
    """

    ints: dict[str, Ints]
    codes: dict[str, Codes]
    words: dict[str, list[str]]
    lines: int
    files: int
    versions: dict[str, int]

    def __len__(self) -> int:
        return len(self.ints["wall_ns"])

    def taken(self, chosen: NDArray[Any]) -> Events:
        """Only these events: positions, or a truth value each."""
        ints = {name: column[chosen] for name, column in self.ints.items()}
        codes = {name: column[chosen] for name, column in self.codes.items()}
        return Events(ints, codes, self.words, self.lines, self.files, self.versions)

    def code(self, column: str, word: str) -> int:
        """The code of a word, -1 of the empty one, -2 where no event has it."""
        try:
            return self.words[column].index(word) if word else -1
        except ValueError:
            return -2

    def word(self, column: str, row: int) -> str:
        return self.words[column][int(self.codes[column][row])]

    def rank(self, row: int) -> int | None:
        rank = int(self.ints["rank"][row])
        return None if rank < 0 else rank


def load(files: Sequence[File], problems: Problems) -> Events:
    """The events of these files. Raises ConfigError where they hold none."""
    lines = 0
    tables: list[pa.Table] = []
    blocks = _blocks(files, problems)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        while batch := list(islice(blocks, 8)):  # so many are in memory at once
            lines += sum(len(block.lines) for block in batch)
            for found, notes in pool.map(_parse, batch):
                tables += found
                for note in notes:
                    problems.note(*note)
        if not tables:
            first = next((f"{one.kind}: {one.example}" for one in problems.listed()), "")
            raise ConfigError(f"none of {lines} lines in {len(files)} files is an event", hint=first)
        ints, codes, words = _columns(pa.concat_tables(tables), pool, problems)
    events = Events(ints, codes, words, lines, len(files), _versions(ints["v"], problems))
    events = _without_duplicates(events, problems)
    _count_losses(events, problems)
    return events


class _Block(NamedTuple):
    """Lines of one or more files. starts: for each file its first line here, its name, and that line's number in it;
    open_ended: lines that no newline ended."""

    lines: list[bytes]
    starts: list[tuple[int, str, int]]
    open_ended: set[int]

    def where(self, at: int) -> str:
        first, name, number = next(one for one in reversed(self.starts) if one[0] <= at)
        return f"{name}:{number + at - first}"


def _blocks(files: Sequence[File], problems: Problems) -> Iterator[_Block]:
    """The lines of the files in blocks of about PIECE bytes."""
    block, size = _Block([], [], set()), 0
    for name, pieces in read_files(files, lambda file, reason: problems.note("damaged file", f"{file}: {reason}")):
        rest, number = b"", 1
        for piece in pieces:
            *whole, rest = (rest[: HUGE + 1] + piece).split(b"\n")  # of a huge line no more than tells that it is one
            if whole:
                block.starts.append((len(block.lines), name, number))
                block.lines.extend(whole)
                number += len(whole)
                size += len(piece)
            if size >= PIECE:
                yield block
                block, size = _Block([], [], set()), 0
        if rest:
            block.open_ended.add(len(block.lines))
            block.starts.append((len(block.lines), name, number))
            block.lines.append(rest)
    if block.lines:
        yield block


def _parse(block: _Block) -> tuple[list[pa.Table], list[tuple[str, str]]]:
    """The events of a block as tables, and kind and place of each problem."""
    tables: list[pa.Table] = []
    notes: list[tuple[str, str]] = []
    rows: list[dict[str, Any]] = []

    def take(first: int, last: int) -> None:
        part = block.lines[first:last]
        table = _arrow(b"\n".join(part) + b"\n", len(part)) if max(map(len, part)) <= HUGE else None
        if table is not None:
            tables.append(table)
        elif len(part) > _FEW:
            take(first, (first + last) // 2)
            take((first + last) // 2, last)
        else:
            for at, line in enumerate(part, first):
                found: set[str] = set()
                row = _row(line, found.add)
                if "garbage" in found and at in block.open_ended:
                    found = {"truncated"}
                notes.extend((kind, block.where(at)) for kind in sorted(found))
                if row:
                    rows.append(row)

    take(0, len(block.lines))
    return [*tables, pa.Table.from_pylist(rows, schema=_SCHEMA)] if rows else tables, notes


def _arrow(data: bytes, lines: int) -> pa.Table | None:
    """The lines as a table, None where pyarrow refuses them or takes another number of objects for them."""
    try:
        if not data.isascii():
            data.decode()
        table = arrow_json.read_json(
            pa.BufferReader(data),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=arrow_json.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="ignore"),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    return table if table.num_rows == lines else None


def _row(line: bytes, note: Callable[[str], object]) -> dict[str, Any] | None:
    """The event of one line with the fields of the schema."""
    if not line.strip():
        return None
    if len(line) > HUGE:
        note("huge line")
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        note("garbage")
        return None
    facts = found.get("facts") or {}
    if not isinstance(facts, dict):
        note("bad field")
        facts = {}
    row = _typed(found, _INTS, _WORDS, note)
    row["cut"] = found.get("cut") is True
    used = facts.get("used")
    row["facts"] = _typed(facts, _FACT_INTS, _FACT_WORDS, note) | {"used": used if isinstance(used, bool) else None}
    return row


def _typed(
    found: dict[str, Any], ints: Sequence[str], words: Sequence[str], note: Callable[[str], object]
) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name in (*ints, *words):
        value = found.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, str) and name in words:
            if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
                note("surrogate")
                value = value.encode("utf-8", "replace").decode()
            row[name] = value
        elif type(value) is int and name in ints and -(1 << 63) <= value < 1 << 63:
            row[name] = value
        elif value is not None:
            note("bad field")
    return row


def _columns(
    table: pa.Table, pool: ThreadPoolExecutor, problems: Problems
) -> tuple[dict[str, Ints], dict[str, Codes], dict[str, list[str]]]:
    event, kinds, wall = table["event"], pa.array(["begin", "end", "instant"]), table["wall_ns"]
    timely = pc.fill_null(pc.and_(pc.greater_equal(wall, 0), pc.less(wall, _MOMENTS)), fill_value=False)
    usable = pc.and_(pc.is_in(event, kinds), pc.and_(pc.is_valid(table["stage"]), timely))
    kept = pc.sum(usable).as_py()
    if not kept:
        raise ConfigError(f"none of {table.num_rows} JSON objects is an event")
    if kept < table.num_rows:
        problems.note("not an event", count=table.num_rows - kept)
        table = table.filter(usable)
    problems.note("cut", count=pc.sum(table["cut"]).as_py() or 0)
    facts = table["facts"].combine_chunks()
    fact_columns = dict(zip((*_FACT_INTS, *_FACT_WORDS, "used"), facts.flatten(), strict=True))
    columns = {name: table[name] for name in (*_INTS, *_WORDS)} | fact_columns

    timed = np.asarray(pc.is_valid(table["mono_ns"]))
    ints = {
        name: np.asarray(pc.fill_null(columns[name], _ABSENT.get(name, 0)), np.int64) for name in (*_INTS, *_FACT_INTS)
    }
    for name, column in ints.items():
        absent = _ABSENT.get(name, 0)
        bad = (column.view(np.uint64) >= _LIMITS.get(name, 1 << 31)) & (column != absent)
        if bad.any():
            problems.note("bad field", count=int(bad.sum()))
            ints[name] = np.where(bad, absent, column)
            timed = timed & ~bad if name == "mono_ns" else timed
    ints["used"] = np.asarray(pc.fill_null(columns["used"], True), np.int64)
    ints["mono_ns"] = np.where(timed, ints["mono_ns"], ints["wall_ns"])
    encoded = zip(*pool.map(_encoded, (columns[name] for name in (*_WORDS, *_FACT_WORDS))), strict=True)
    codes, words = (dict(zip((*_WORDS, *_FACT_WORDS), each, strict=True)) for each in encoded)
    if untimed := int((~timed).sum()):
        problems.note("no monotonic clock", count=untimed)
        codes["boot"] = np.where(timed, codes["boot"], np.int32(len(words["boot"]) - 1))
        words["boot"][-1:] = ["wall clock", ""]
    return ints, codes, words


def _encoded(column: pa.ChunkedArray) -> tuple[Codes, list[str]]:
    array = pc.dictionary_encode(column)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    codes = np.asarray(pc.fill_null(array.indices, -1), np.int32)
    words = array.dictionary.to_pylist()
    if "" in words:
        codes = np.where(codes == words.index(""), np.int32(-1), codes)
    return codes, [*words, ""]


def _versions(v: Ints, problems: Problems) -> dict[str, int]:
    versions = {str(int(version)): int(count) for version, count in zip(*np.unique(v, return_counts=True), strict=True)}
    problems.note("no version", count=versions.get("0", 0))
    problems.note("newer version", count=sum(count for version, count in versions.items() if int(version) > 1))
    return versions


def group_ids(*columns: NDArray[Any]) -> Ints:
    """A number for each row, the same for rows that are equal in all columns. Codes may be -1, and are below 2**31."""
    made = columns[0].astype(np.int64) + 1
    for column in columns[1:]:
        size = int(column.max(initial=0)) + 2
        if int(made.max(initial=0)) >= (1 << 62) // size:
            made = np.unique(made, return_inverse=True)[1].astype(np.int64)
        made = made * size + column + 1
    return made


def _without_duplicates(events: Events, problems: Problems) -> Events:
    ints, codes = events.ints, events.codes
    texts = ("node", "boot", "source", "event", "span", "stage", "name", "job", "run")
    columns: list[NDArray[Any]] = [codes[name] for name in texts]
    columns += [ints[name] for name in ("mono_ns", "seq", "pid", "rank", "attempt")]
    mixed = np.zeros(len(events), np.uint64)
    for column in columns:
        mixed = (mixed ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    order = np.argsort(mixed, kind="stable")
    again = np.flatnonzero(mixed[order][1:] == mixed[order][:-1]) + 1
    for column in columns:
        again = again[column[order[again]] == column[order[again - 1]]]
    if not len(again):
        return events
    problems.note("duplicate", count=len(again))
    kept = np.ones(len(events), bool)
    kept[order[again]] = False
    return events.taken(kept)


def _count_losses(events: Events, problems: Problems) -> None:
    """Gaps and inversions in the numbers of each process, and the losses that processes tell themselves."""
    told = events.codes["stage"] == events.code("stage", "dropped")
    problems.note("dropped", count=int(events.ints["events"][told].sum()))
    services = [events.code("source", name) for name in _SERVICES]
    numbered = events.taken((events.ints["seq"] >= 0) & ~np.isin(events.codes["source"], services))
    if not len(numbered):
        return
    texts = (numbered.codes[name] for name in ("node", "boot", "source", "job", "run"))
    one = numbered.codes["source"] != events.code("source", "trace")  # the tracer tells of processes of several ranks
    ranks = (np.where(one, numbered.ints[name], -1) for name in ("attempt", "rank"))
    writer = group_ids(*texts, numbered.ints["pid"], *ranks)  # containers of a node use the same process ids
    order = np.lexsort((numbered.ints["seq"], writer))
    writer, seq, mono = writer[order], numbered.ints["seq"][order], numbered.ints["mono_ns"][order]
    same = writer[1:] == writer[:-1]
    gaps = np.where(same, np.maximum(np.diff(seq) - 1, 0), seq[1:])
    at = int(np.argmax(gaps)) + 1 if len(gaps) and gaps.any() else 0
    row = int(order[at])
    example = f"{numbered.word('node', row)} pid {numbered.ints['pid'][row]}: before number {seq[at]}"
    problems.note("lost", example, count=int(gaps.sum() + seq[0]))
    ordered = numbered.codes["stage"][order] != events.code("stage", "imports")  # these are told when they have ended
    again = writer[1:][same & (seq[1:] == 0)]  # one that has executed itself anew, say, under the same id
    ordered &= ~np.isin(writer, again)
    writer, mono = writer[ordered], mono[ordered]
    problems.note("out of order", count=int(((writer[1:] == writer[:-1]) & (np.diff(mono) < 0)).sum()))
