"""`imagefs startup import`: data of other tools, written after their documented formats, become events."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click import Context
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from imagefs.cli.startup import command
from imagefs.startup.importers import KINDS, Given, read
from imagefs.startup.importers.events import duration_ns, time_ns
from imagefs.startup.importers.slurm import hosts
from stripefs.errors import ConfigError, StripefsError
from tests.support.checkout import CHECKOUT

SAMPLES = Path(__file__).with_name("samples")
OF_KIND = {
    "containerd": "*.events", "csv": "*.csv", "kubernetes": "*.json", "otlp": "*.jsonl", "slurm": "*.txt",
    "systemd": "node7.*",
}  # fmt: skip
S = 10**9


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * S


class Answer:
    def __init__(self, arguments: Sequence[str]) -> None:
        result = CliRunner().invoke(command, ["import", *arguments])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        self.errors = result.stderr
        self.events: list[dict[str, Any]] = [json.loads(line) for line in result.stdout.splitlines()]
        for event in self.events:
            assert event["v"] == 1
            assert event["source"] == f"import:{arguments[0]}"
            assert not {"mono_ns", "boot", "pid", "seq"} & event.keys()

    def spans(self) -> dict[tuple[str, str], tuple[float, float]]:
        """Stage and name of each span: its begin and duration in seconds."""
        ends = {event["span"]: event for event in self.events if event["event"] == "end"}
        return {
            (begin["stage"], begin.get("name", "")): (begin["wall_ns"] / S, (end["wall_ns"] - begin["wall_ns"]) / S)
            for begin in self.events
            if begin["event"] == "begin"
            for end in [ends[begin["span"]]]
        }

    def rejected(self) -> dict[int, str]:
        rows = (line.split(":", 2) for line in self.errors.splitlines() if ": " in line and line.count(":") >= 2)
        return {int(number): why.strip() for _, number, why in rows if number.isdecimal()}


def run(*arguments: str) -> Answer:
    return Answer(arguments)


def test_containerd() -> None:
    answer = run("containerd", str(SAMPLES / "gpu-03.events"))
    assert {event["node"] for event in answer.events} == {"gpu-03"}
    assert answer.spans() == {
        ("image", "unpack sha256:aa01"): (at("2026-03-02T08:00:02") / S + 0.25, 7.500000001),
        ("container", "3cfb678e"): (at("2026-03-02T08:00:10") / S, 1.0),
    }
    (created,) = (event for event in answer.events if event["event"] == "instant")
    assert created["facts"] == {"image": "registry.example/train:1"}
    assert sorted(answer.rejected()) == [8, 12, 13]


def test_kubernetes() -> None:
    answer = run("kubernetes", str(SAMPLES / "kubernetes.json"))
    assert answer.spans() == {
        ("queue", "ml/llm-3-x7k2p"): (at("2026-03-02T07:58:00") / S, 120.0),
        ("container", "sandbox ml/llm-3-x7k2p"): (at("2026-03-02T08:00:00") / S, 7.0),
        ("container", "init ulimit"): (at("2026-03-02T08:00:03") / S, 2.0),
        ("image", "pull registry.example/train:1"): (at("2026-03-02T08:00:07") / S + 0.75, 82.25),
        ("image", "pull queue"): (at("2026-03-02T08:00:07") / S + 0.75, 19.75),
        ("container", "trainer"): (at("2026-03-02T08:01:30") / S, 1.0),
    }
    mine = [event for event in answer.events if event["node"] == "gpu-03"]
    assert {(event["job"], event["run"][:8], event["rank"]) for event in mine} == {("llm", "0d9a6f1e", 3)}
    (pulled,) = (event for event in mine if event["event"] == "end" and event["name"].startswith("pull reg"))
    assert pulled["facts"] == {
        "pod": "ml/llm-3-x7k2p", "image": "registry.example/train:1", "misses": 1, "bytes": 543804759,
    }  # fmt: skip
    (present,) = (event for event in answer.events if event.get("name") == "present")
    assert (present["node"], present["wall_ns"]) == ("gpu-04", at("2026-03-02T08:00:04") + S // 2)
    lines = (SAMPLES / "kubernetes.json").read_text().splitlines()
    (rejected,) = answer.rejected().items()
    assert rejected == (
        next(n for n, line in enumerate(lines) if "llm-5-bbbbb" in line) - 2,
        "the event Started has no time",
    )
    assert "1 NodeReady" in answer.errors


def test_slurm() -> None:
    answer = run("slurm", str(SAMPLES / "sacct.txt"), "--zone", "Europe/Berlin")
    mine = [event for event in answer.events if event["run"] == "900"]
    for stage in ("setup", "queue"):
        nodes = {event["node"] for event in mine if event["stage"] == stage}
        assert nodes == {"big1", "gpu008", "gpu009", "gpu010"}
    spans = {(event["stage"], event["name"], event["event"]): event for event in mine}
    assert spans["queue", "not eligible", "begin"]["wall_ns"] == at("2026-03-02T07:00:00")
    assert spans["queue", "eligible", "begin"]["wall_ns"] == at("2026-03-02T07:10:00")
    assert spans["queue", "eligible", "end"]["wall_ns"] == at("2026-03-02T07:30:00")
    assert spans["queue", "eligible", "end"]["facts"] == {"cause": "queue", "nodes": 4}
    assert spans["setup", "before the first step", "end"]["wall_ns"] == at("2026-03-02T07:30:41")
    assert {(event["job"], event["attempt"]) for event in mine} == {("llm", 1)}
    assert sorted(answer.rejected()) == [7, 8, 9]
    assert "1 not started" in answer.errors


def test_systemd() -> None:
    origin = ["--origin", "Mon 2026-03-02 08:00:00 UTC"]
    zero = at("2026-03-02T08:00:00") / S
    timed = run("systemd", str(SAMPLES / "node7.time"), *origin)
    assert timed.spans() == {
        ("container", "boot firmware"): (zero - 6.75, 5.5),
        ("container", "boot loader"): (zero - 1.25, 1.25),
        ("container", "boot kernel"): (zero, 2.5),
        ("container", "boot initrd"): (zero + 2.5, 4),
        ("container", "boot userspace"): (zero + 6.5, 62.125),
    }
    (reached,) = (event for event in timed.events if event["event"] == "instant")
    assert (reached["name"], reached["wall_ns"] / S, reached["node"]) == ("graphical.target", zero + 68.5, "node7")
    blamed = run("systemd", str(SAMPLES / "node7.blame"), *origin)
    assert [event["facts"]["duration_ns"] for event in blamed.events] == [63_044_000_000, 5_203_000_000, 796_000_000]
    assert list(blamed.rejected()) == [4]
    plotted = run("systemd", str(SAMPLES / "node7.json"), *origin)
    assert plotted.spans() == {("container", "containerd.service"): (zero + 8, 1.5)}
    assert list(plotted.rejected()) == [3]
    with pytest.raises(StripefsError, match="--origin"):
        run("systemd", str(SAMPLES / "node7.json"))


def test_otlp() -> None:
    answer = run("otlp", str(SAMPLES / "collector.jsonl"), "--stage", "load*=checkpoint")
    assert answer.spans().keys() == {("checkpoint", "load checkpoint"), ("compile", "compile")}
    begin, end = (event for event in answer.events if event["stage"] == "checkpoint")
    assert (begin["job"], begin["node"], begin["wall_ns"]) == ("train", "gpu-03", 1772438400000000321)
    assert begin["run"] == "5B8EFFF798038103D269B633813FC60C"
    assert (begin["span"], begin["parent"]) == ("eee19b7ec3c1b174", "eee19b7ec3c1b173")
    assert end["facts"] == {"error": "TimeoutError"}
    assert "1 span unrelated without a stage" in answer.errors
    assert sorted(answer.rejected()) == [1, 2, 3]  # in line 1, the span whose id is base64
    assert "7ugbfspbsxq=" in answer.rejected()[1]


def test_csv_by_a_mapping_file_and_by_flags(tmp_path: Path) -> None:
    answer = run("csv", str(SAMPLES / "wide.csv"), "--mapping", str(SAMPLES / "mapping.toml"))
    spans = [
        (event["node"], event["stage"], event["wall_ns"] / S) for event in answer.events if event["event"] == "begin"
    ]
    zero = at("2026-03-02T08:00:00") / S
    assert sorted(spans) == [("gpu-1", "first_step", zero + 120), ("gpu-1", "image", zero), ("gpu-2", "image", zero)]
    ends = [event for event in answer.events if event["event"] == "end" and event["node"] == "gpu-1"]
    assert {event["stage"]: event["wall_ns"] / S for event in ends} == {"image": zero + 42, "first_step": zero + 123.5}
    assert ends[0]["facts"] == {"model": "a;b"}
    assert {(event["job"], event["run"]) for event in answer.events} == {("llm", "77")}
    assert sorted(answer.rejected()) == [4, 5, 6]

    long = tmp_path / "long.csv"
    long.write_text("what,t,n,r\ndocker pull,1772438400500,gpu-1,0\nlunch,1772438400500,gpu-1,x\n")
    flags = ["--map", "what=stage", "--map", "t=at", "--map", "n=node", "--map", "r=rank", "--time-format", "unix_ms"]
    answer = run("csv", str(long), *flags, "--stage", "docker*=image", "--set", "run=5")
    (event,) = answer.events
    assert (event["stage"], event["event"], event["rank"]) == ("image", "instant", 0)
    assert event["wall_ns"] == 1772438400500 * 10**6
    assert list(answer.rejected()) == [3]


def test_csv_of_other_programs(tmp_path: Path) -> None:
    """An index without a name, as pandas writes it; numbers that JSON lacks; a time that is none."""
    (tmp_path / "a.csv").write_text(",node,b,s,x\n0,n,1,2,nan\n1,n,2,3,1e999\n2,n,1e999995,3,0.5\n3,n,1e600000,3,1\n")
    columns = {"node": "node", "b": "image.begin", "s": "image.seconds", "x": "facts.x"}
    imported = read("csv", [tmp_path / "a.csv"], Given(columns=columns, time_format="unix"))
    facts = [event["facts"] for event in imported.events if event["event"] == "end"]
    assert facts == [{"x": "nan"}, {"x": "inf"}]
    assert [one.line for one in imported.rejected] == [4, 5]


def test_the_document_has_each_kind_and_its_mapping_is_accepted(tmp_path: Path) -> None:
    text = (CHECKOUT / "docs" / "startup-import.md").read_text()
    assert [title for title in re.findall(r"^## (.+)", text, re.MULTILINE) if title in KINDS] == [
        "containerd", "kubernetes", "otlp", "systemd", "slurm", "csv",
    ]  # fmt: skip
    (mapping,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "mapping.toml").write_text(mapping)
    answer = run("csv", str(SAMPLES / "wide.csv"), "--mapping", str(tmp_path / "mapping.toml"))
    assert {event["stage"] for event in answer.events} == {"image"}
    known = {word for one in command.get_command(Context(command), "import").params for word in one.opts}
    used = re.findall(r"^    imagefs startup import (.*(?:\\\n.*)?)", text, re.MULTILINE)
    assert len(used) == 8
    assert {word for line in used for word in re.findall(r"--[a-z-]+", line)} <= known
    (lines,) = re.findall(r"((?:^    \d{4}-.* UTC k8s.io .*\n)+)", text, re.MULTILINE)
    (tmp_path / "gpu.events").write_text(lines)
    assert run("containerd", str(tmp_path / "gpu.events")).spans().keys() == {("image", "unpack sha256:aa01")}


def test_the_identity_given_on_the_command_line_replaces_that_of_the_data(tmp_path: Path) -> None:
    arguments = [
        "slurm",
        str(SAMPLES / "sacct.txt"),
        "--out",
        str(tmp_path),
        "--run",
        "r",
        "--job",
        "j",
        "--zone",
        "UTC",
    ]
    for _ in range(2):  # the same data twice are there once
        assert CliRunner().invoke(command, ["import", *arguments]).exit_code == 0
    (file,) = tmp_path.iterdir()
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert {(event["job"], event["run"]) for event in events} == {("j", "r")}
    assert [event["wall_ns"] for event in events] == sorted(event["wall_ns"] for event in events)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["slurm", str(SAMPLES / "node7.blame")], "no column JobID"),
        (["slurm", "missing"], "cannot be read"),
        (["csv", str(SAMPLES / "wide.csv"), "--map", "a=node"], "no column 'a'.*its columns are host"),
        (["csv", str(SAMPLES / "wide.csv"), "--map", "host;job id=b"], "no column"),
        (["csv", str(SAMPLES / "wide.csv"), "--delimiter", ";", "--map", "host=b"], "b is no field"),
        (["csv", str(SAMPLES / "wide.csv")], "nothing maps to fields"),
        (["csv", str(SAMPLES / "wide.csv"), "--map", "host"], "NAME=VALUE"),
        (["csv", str(SAMPLES / "wide.csv"), "--delimiter", ";", "--map", "host=image.x"], "image.x is no field"),
        (["csv", str(SAMPLES / "wide.csv"), "--delimiter", "ab"], "not one character"),
        (["csv", str(SAMPLES / "wide.csv"), "--mapping", str(SAMPLES / "wide.csv")], "not TOML"),
        (["otlp", str(SAMPLES / "collector.jsonl"), "--stage", "a=b"], "'b' is no stage"),
        (["slurm", str(SAMPLES / "sacct.txt"), "--zone", "Mars/Base"], "no time zone"),
        (["systemd", str(SAMPLES / "node7.json"), "--origin", "2026-03-02 08:00:00 CST"], "several zones share"),
        (["otlp", str(SAMPLES / "sacct.txt")], "nothing of .* tells of a start"),
    ],
)
def test_bad_requests_get_one_line(arguments: list[str], words: str) -> None:
    with pytest.raises(StripefsError, match=words) as caught:
        run(*arguments)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == (2 if isinstance(caught.value, ConfigError) else 4)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [("1m2s", 62 * S), ("796ms", 796 * 10**6), ("49.18401355s", 49184013550), ("1h0m0.5s", 3600 * S + S // 2),
     ("1min 2.125s", 62125 * 10**6), ("313µs", 313000), ("2d 3h", 51 * 3600 * S)],
)  # fmt: skip
def test_durations(text: str, nanoseconds: int) -> None:
    assert duration_ns(text) == nanoseconds


@given(st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1)), st.integers(0, 999_999_999), st.sampled_from("T "))
def test_a_time_keeps_its_nanoseconds(moment: datetime, fraction: int, between: str) -> None:
    whole = moment.replace(microsecond=0)
    text = f"{whole:%Y-%m-%d}{between}{whole:%H:%M:%S}.{fraction:09}"
    seconds = int((whole - datetime(1970, 1, 1)).total_seconds())
    assert time_ns(text + "Z") == seconds * S + fraction
    assert time_ns(text + " +0100 CET") == (seconds - 3600) * S + fraction


def test_host_lists() -> None:
    assert hosts("a[1-2]b[08-10,3],login") == [f"a{x}b{y}" for x in "12" for y in ("08", "09", "10", "3")] + ["login"]
    for bad in ("a[2-1]", "a[x]", "a[1-999999999]", "a[1-999]b[1-999]"):
        with pytest.raises(ValueError, match="host list"):
            hosts(bad)


@given(kind=st.sampled_from(sorted(KINDS)), data=st.data())
def test_damaged_data_never_fail_with_another_error(
    kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Samples of which a part is overwritten give events and rejected rows, or one of our errors."""
    sample = data.draw(st.sampled_from(sorted(SAMPLES.glob(OF_KIND[kind]))))
    content = bytearray(sample.read_bytes())
    for _ in range(data.draw(st.integers(0, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 30))] = data.draw(
            st.sampled_from(
                [b"", b"\x00", b"\xff", b"null", b'"', b"{", b"9" * 30, b"-1", b"[]", b"\n", b"1e999", b"|"]
            )
        )
    file = tmp_path_factory.getbasetemp() / "damaged"
    file.write_bytes(content)
    wanted = Given(origin=0, zone=UTC, columns={"host": "node", "pull from": "image.begin"}, delimiter=";")
    try:
        imported = read(kind, [file], wanted)
    except StripefsError:
        return
    for event in imported.events:
        json.dumps(event, allow_nan=False)
        assert all(not isinstance(value, int) or 0 <= value < 1 << 63 for value in event.values())
    begins = {event["span"] for event in imported.events if event["event"] == "begin"}
    assert begins == {event["span"] for event in imported.events if event["event"] == "end"}
    assert all(one.line > 0 for one in imported.rejected)
