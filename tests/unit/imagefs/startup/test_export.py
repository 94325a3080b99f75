"""`imagefs startup export`: Perfetto and OTLP say what the events say."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from imagefs.cli.startup import command
from imagefs.startup.exports import paired, read_events, to_otlp, to_perfetto
from imagefs.startup.importers import Given, read
from stripefs.errors import StripefsError
from stripefs.startup_events import STAGES, ProcessIdentity, Writer

Event = dict[str, Any]
ZERO = 1772438400 * 10**9

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
FACTS = st.dictionaries(
    st.sampled_from(["bytes", "hits", "cause", "a.b", "facts"]),
    st.one_of(
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.booleans(),
        TEXTS.filter(bool),
        st.floats(allow_nan=False, allow_infinity=False),
    ),
    max_size=3,
)


@st.composite
def event_sets(draw: st.DrawFn) -> list[Event]:
    """Events of a few processes: spans that overlap, with lost begins and ends, and instants."""
    events: list[Event] = []
    for number in range(draw(st.integers(0, 8))):
        who: Event = {
            "v": 1, "job": draw(TEXTS), "run": draw(st.sampled_from(["", "r1", "r2"])), "node": draw(TEXTS),
            "rank": draw(st.none() | st.integers(0, 3)), "attempt": draw(st.none() | st.integers(0, 2)),
            "boot": draw(st.sampled_from(["", "b1"])), "pid": draw(st.none() | st.integers(1, 9)),
            "stage": draw(st.sampled_from(STAGES)), "name": draw(TEXTS),
            "kind": draw(st.sampled_from(["work", "wait"])),
            "trace": draw(st.sampled_from(["", "0af7651916cd43dd8448eb211c80319c"])),
        }  # fmt: skip
        begin = ZERO + draw(st.integers(0, 10**10))
        lasted = draw(st.integers(0, 10**10))
        clock = draw(st.booleans())
        parent = draw(st.sampled_from(["", "00f067aa0ba902b7"]))
        for kind in draw(st.sampled_from([["instant"], ["begin"], ["end"], ["begin", "end"]])):
            at = begin + lasted if kind == "end" else begin
            event = {**who, "event": kind, "wall_ns": at, "facts": draw(FACTS)}
            if kind != "instant":
                event["span"] = f"{number + 1:016x}"
            if kind == "end" and "pid" in who:
                event["pid"] = draw(st.integers(1, 9))
            if kind == "begin":
                event["parent"] = parent
            if clock:
                event["mono_ns"] = at - ZERO + 5
            events.append({key: value for key, value in event.items() if value not in ("", None, {})})
    return sorted(events, key=lambda event: event["wall_ns"])


@given(event_sets())
def test_a_trace_for_perfetto_pairs_by_id_and_is_in_order(events: list[Event]) -> None:
    rows = json.loads(to_perfetto(events))["traceEvents"]
    heads = [row for row in rows if row["ph"] == "M"]
    rows = [row for row in rows if row["ph"] != "M"]
    assert [row["ts"] for row in rows] == sorted(row["ts"] for row in rows)
    assert all(row["ts"] >= 0 and isinstance(row["pid"], int) and isinstance(row["tid"], int) for row in rows)
    processes = {row["pid"] for row in heads if row["name"] == "process_name"}
    threads = {(row["pid"], row["tid"]) for row in heads if row["name"] == "thread_name"}
    assert {row["pid"] for row in rows} == processes
    assert {(row["pid"], row["tid"]) for row in rows} == threads
    assert len(processes) == len(
        {(e.get("job", ""), e.get("run", ""), e.get("attempt", 0), e.get("node", "")) for e in events}
    )

    spans = paired(events)
    open_ids: dict[tuple[str, str, int], Event] = {}
    ended = 0
    for row in rows:
        key = (row["cat"], row.get("id", ""), row["pid"])
        if row["ph"] == "b":
            assert key not in open_ids
            open_ids[key] = row
        elif row["ph"] == "e":
            assert open_ids.pop(key)["name"] == row["name"]
            ended += 1
        else:
            assert row["ph"] == "i"
            assert row["s"] == "t"
    assert ended == sum(one.begin is not None and one.end is not None for one in spans)
    assert all(row["args"]["unfinished"] for row in open_ids.values())
    assert sum(row["ph"] == "i" for row in rows) == sum(one.first["event"] != "begin" for one in spans)


@given(event_sets())
def test_otlp_is_that_of_the_schema_and_gives_the_events_back(
    tmp_path_factory: pytest.TempPathFactory, events: list[Event]
) -> None:
    lines = list(to_otlp(events))
    for line in lines:
        data = json_format.Parse(line, TracesData())  # refuses unknown fields and wrong types
        for span in [one for batch in data.resource_spans for scope in batch.scope_spans for one in scope.spans]:
            assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
        for row in [one for scope in json.loads(line)["resourceSpans"][0]["scopeSpans"] for one in scope["spans"]]:
            assert (len(bytes.fromhex(row["traceId"])), len(bytes.fromhex(row["spanId"]))) == (16, 8)
    file = tmp_path_factory.getbasetemp() / "round.jsonl"
    file.write_text("".join(lines))
    imported = read("otlp", [file], Given())
    assert not imported.rejected
    assert not imported.passed_over

    def plain(event: Event) -> str:
        return json.dumps({key: value for key, value in event.items() if key != "source"}, sort_keys=True)

    assert sorted(map(plain, imported.events)) == sorted(map(plain, events))


def test_stages_marked_several_times_are_paired_in_order() -> None:
    """Marks of one stage share a span; each begin is by a process of its own."""
    one = {"v": 1, "stage": "checkpoint", "name": "x", "span": "00f067aa0ba902b7", "run": "r", "node": "n", "boot": "b"}
    marks = [("begin", 1), ("begin", 2), ("end", 5), ("end", 9), ("end", 10), ("begin", 11)]
    events = [{**one, "event": kind, "wall_ns": ZERO + at, "mono_ns": at, "pid": at} for kind, at in reversed(marks)]
    spans = [tuple(event and event["mono_ns"] for event in pair) for pair in paired(events)]
    assert spans == [(1, 5), (2, 9), (None, 10), (11, None)]
    rows = [json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"] for line in to_otlp(events)]
    ids = [row["spanId"] for line in rows for row in line]
    assert len(set(ids)) == 4
    assert ids[0] == one["span"]


def test_durations_are_those_of_the_monotonic_clock_within_a_boot() -> None:
    begin = {"event": "begin", "wall_ns": ZERO, "mono_ns": 10, "boot": "a", "stage": "image", "span": "1"}
    end = {**begin, "event": "end", "wall_ns": ZERO - 10**9, "mono_ns": 10 + 3 * 10**9}
    (one,) = paired([begin, end])
    assert one.end_ns - one.begin_ns == 3 * 10**9
    walls = [{key: value for key, value in one.items() if key != "mono_ns"} for one in (begin, end)]
    (other,) = paired([walls[0], {**walls[1], "wall_ns": ZERO + 7}])
    assert other.end_ns - other.begin_ns == 7
    assert len(paired([begin, {**end, "boot": "b"}])) == 2


def run(*arguments: str) -> Result:
    """`imagefs startup` with these arguments, which ends well or with an error of ours."""
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_files_of_the_writer_are_exported_and_lines_that_are_none_counted(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path / "spool"), ProcessIdentity(job="j", run="r", node="n1", rank=0), "job")
    with writer.begin("imports", "torch"):
        writer.instant("image", "first byte")
    assert writer.close()
    (file,) = (tmp_path / "spool").iterdir()
    good = file.read_text()
    (tmp_path / "spool" / "copy.jsonl").write_text(good)  # a collector may copy a file twice
    half = {
        "v": 1,
        "wall_ns": 1,
        "event": "instant",
        "stage": "image",
        "name": "a\ud800b",
        "facts": {"bytes": math.nan},
    }
    huge = json.dumps(half).replace("}}", ',"hits":1e999}}')
    bad = ["", "{", "[]", "null", '{"v":1}', '{"v":9,"wall_ns":1,"event":"begin","stage":"a"}',
           '{"v":1,"wall_ns":"1","event":"begin","stage":"a"}', "\udcff"]  # fmt: skip
    file.write_bytes(good.encode() + "\n".join([huge, *bad]).encode("utf-8", "surrogateescape"))
    found = read_events([str(tmp_path)])
    assert [event["name"] for event in found.events] == ["a?b", "torch", "first byte", "torch"]
    assert (found.bad_lines, found.damaged) == (len(bad) - 1, [])
    out = tmp_path / "trace.json"
    assert "7 lines are no events" in run("export", "--format", "perfetto", str(tmp_path), "-o", str(out)).stderr
    rows = json.loads(out.read_text(), parse_constant=pytest.fail)["traceEvents"]
    assert {"NaN", "1e999"} <= {fact for row in rows for fact in row.get("args", {}).values()}
    assert {row["ph"] for row in rows} == {"M", "b", "e", "i"}
    lines = run("export", "--format", "otlp", str(tmp_path / "spool"), "-o", "-").stdout.splitlines()
    assert [len(json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]) for line in lines] == [1, 2]
    for arguments, words in (
        (["--format", "otlp", str(tmp_path / "none"), "-o", "-"], "does not exist"),
        (["--format", "otlp", str(tmp_path), "-o", "-", "--run", "other"], "no events of the run other"),
        (["--format", "otlp", str(tmp_path), "-o", str(tmp_path / "no/way")], "cannot be written"),
    ):
        with pytest.raises(StripefsError, match=words):
            run("export", *arguments)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["spool", "trace.json"]


def test_data_of_another_tool_become_a_page_and_charts(tmp_path: Path) -> None:
    sample = str(Path(__file__).with_name("samples") / "sacct.txt")
    for _ in range(2):  # the same data twice are there once
        run("import", "slurm", sample, "--zone", "UTC", "--job", "j", "--out", str(tmp_path / "events"))
    (file,) = (tmp_path / "events").iterdir()
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert {event["job"] for event in events} == {"j"}, "the identity that is given replaces that of the data"
    assert [event["wall_ns"] for event in events] == sorted(event["wall_ns"] for event in events)
    run("export", "--format", "html", str(tmp_path / "events"), "-o", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert "Where 2 starts spent time" in page
    assert "Start of j 900 attempt 1: 1841 s" in page

    def svg(*options: str) -> str:
        return run("export", "--format", "svg", *options, str(tmp_path / "events"), "-o", "-").stdout

    for chart, title in (("timeline", "Timeline"), ("breakdown", "Breakdown by stage"), ("spread", "Spread over nodes"),
                         ("critical-path", "Critical path")):  # fmt: skip
        text = svg("--chart", chart)
        assert f"<title>{title}</title>" in text
        assert text.count('class="b s-setup') >= 1
    assert svg("--chart", "growth").count("<circle") == 2
    assert "total after" in svg("--chart", "comparison", "--before", str(tmp_path / "events"))
    one = svg("--run", "901")
    assert "gpu001" in one
    assert "gpu008" not in one
