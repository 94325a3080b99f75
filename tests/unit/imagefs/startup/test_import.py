"""`imagefs startup import`: data of other tools, written after their documented formats, become events."""

from __future__ import annotations

import json
import re
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
from imagefs.startup.importers.events import time_ns
from imagefs.startup.importers.text import hosts
from stripefs.errors import ConfigError, StripefsError
from tests.support.checkout import CHECKOUT
from tests.unit.imagefs.startup.golden import FOLDER, IMPORTS, SAMPLES, imported

OF_KIND = {
    "containerd": "*.events", "csv": "*.csv", "kubernetes": "*.json", "otlp": "*.jsonl", "slurm": "*.txt",
    "systemd": "node7.*",
}  # fmt: skip
S = 10**9


def run(*arguments: str) -> tuple[list[dict[str, Any]], str]:
    """The events, and what is said of the rest."""
    result = CliRunner().invoke(command, ["import", *arguments], catch_exceptions=False)
    return [json.loads(line) for line in result.stdout.splitlines()], result.stderr


@pytest.mark.parametrize("name", IMPORTS)
def test_samples_become_the_golden_events(name: str) -> None:
    assert imported(name) == (FOLDER / f"import-{name}.txt").read_text()


def test_csv_by_flags(tmp_path: Path) -> None:
    long = tmp_path / "long.csv"
    long.write_text("what,t,n,r\ndocker pull,1772438400500,gpu-1,0\nlunch,1772438400500,gpu-1,x\n")
    flags = ["--map", "what=stage", "--map", "t=at", "--map", "n=node", "--map", "r=rank", "--time-format", "unix_ms"]
    (event,), rest = run("csv", str(long), *flags, "--stage", "docker*=image", "--set", "run=5")
    assert (event["stage"], event["event"], event["rank"]) == ("image", "instant", 0)
    assert event["wall_ns"] == 1772438400500 * 10**6
    assert re.findall(r"long\.csv:(\d+): ", rest) == ["3"]


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
    events, _ = run("csv", str(SAMPLES / "wide.csv"), "--mapping", str(tmp_path / "mapping.toml"))
    assert {event["stage"] for event in events} == {"image"}
    known = {word for one in command.get_command(Context(command), "import").params for word in one.opts}
    used = re.findall(r"^    imagefs startup import (.*(?:\\\n.*)?)", text, re.MULTILINE)
    assert len(used) == 8
    assert {word for line in used for word in re.findall(r"--[a-z-]+", line)} <= known
    (lines,) = re.findall(r"((?:^    \d{4}-.* UTC k8s.io .*\n)+)", text, re.MULTILINE)
    (tmp_path / "gpu.events").write_text(lines)
    events, _ = run("containerd", str(tmp_path / "gpu.events"))
    assert {(event["event"], event["stage"], event["name"]) for event in events} == {
        (event, "image", "unpack sha256:aa01") for event in ("begin", "end")
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["slurm", str(SAMPLES / "node7.blame")], "no column JobID"),
        (["slurm", "missing"], "cannot be read"),
        (["csv", str(SAMPLES / "wide.csv"), "--map", "a=node"], "no column 'a'.*its columns are host"),
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
