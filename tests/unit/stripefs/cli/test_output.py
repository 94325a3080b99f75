"""Figures as people read them, and the page of `stripefs status`."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.cli.output import columns, duration, rate, table
from stripefs.cli.status import describe
from tests.unit.checkout.test_metrics import STATUS


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B/s"),
        (999, "999 B/s"),
        (1500, "1.5 kB/s"),
        (40e6, "40 MB/s"),
        (222.4e6, "222 MB/s"),
        (3.21e12, "3210 GB/s"),
    ],
)
def test_rates(value: float, text: str) -> None:
    assert rate(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.9, "59 s"),
        (61, "1 min 1 s"),
        (3600, "1 h 0 min"),
        (90000, "1 d 1 h"),
        (86400 * 400, "400 d 0 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_table_shows_a_name_once_and_drops_what_is_empty() -> None:
    assert table([("a", "1"), ("long", "2"), ("long", "3"), ("none", "")]) == "a     1\nlong  2\n      3"
    assert table([]) == ""


@given(st.lists(st.tuples(st.text("ab", max_size=5), st.text("01", max_size=5)), min_size=1))
def test_columns_line_up(rows: list[tuple[str, str]]) -> None:
    lines = columns(("name", "figure"), rows).split("\n")
    assert len(lines) == len(rows) + 1
    for (name, figure), line in zip(rows, lines[1:], strict=True):
        assert line.startswith(name)
        assert line.rstrip().endswith(figure)


def test_the_status_page() -> None:
    status = {name: STATUS[name] for name in STATUS if name != "writer"} | {
        "worker_pid": 7,
        "generation": 3,
        "kernel": {
            "read_ahead_kb": {"wanted": 4096, "now": 128, "limit": "/sys/x: Permission denied"},
            "max_background": {"wanted": 64, "now": 64, "limit": ""},
        },
        "store": {"transport": "webhdfs", "why": "by rule"},
    }
    status["reader"] = STATUS["reader"] | {
        "files": [{"path": "/a", "length": 1 << 30, "cursors": [{"position": 1 << 20, "window": 8 << 20}]}] * 12
    }
    status["reader"]["hosts"] = [host | {"reason": "timed out"} for host in STATUS["reader"]["hosts"]]
    page = describe(status)
    for text in (
        "hdfs://nn/data on /mnt/data",
        "transport  webhdfs",
        "process 7, generation 3, 2 restarts, up ",
        "read_ahead_kb 128 (/sys/x: Permission denied), max_background 64",
        "1 MB/s now",
        "1000 requests, 1 failed",
        "5 MiB of 1 GiB, 9 MiB at most",
        "8 of 32 reads of 8 MiB",
        "5, of which 1 came first; 6 retries",
        "2 HostFailed, 1 ServiceDown",
        "and 2 more",
        "4 s: timed out",
    ):
        assert text in page


def writing(**changed: object) -> dict[str, Any]:
    """The status of a mount with --rw."""
    status = {key: STATUS[key] for key in ("source", "mountpoint", "requests")}
    return status | {"writer": STATUS["writer"] | changed}


def test_the_status_page_of_a_mount_that_is_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_700_000_170.0)
    page = describe(writing(drafts=STATUS["writer"]["drafts"] * 12)).splitlines()
    for line in (
        "written       2 MB/s now, 1048576 TiB so far, 512 MiB sent; 11 files open",
        "write memory  3 MiB of 512 MiB, 12 writes waited 1 min 1 s in all",
        "parts         13 under way, 14 wait for a host; 15 retries",
        "published     16 versions; 17 replaced ones kept for readers",
        "write errors  19 HostFailed, 18 ServiceDown",
        "lost          21 DraftLost, 20 NoSpace",
        "staged        5 MiB of 6 MiB",
        "last error    1 min 10 s ago: /secret/old: no room",
        "file being written   layout  length  in memory",
        "/secret/new         striped   1 GiB      3 MiB",
        "and 2 more",
        "data host      parts  files  sent  errors             avoided",
        "10.0.0.2:9866      2      0  20 B       1  8 s: no byte moved",
    ):
        assert line in page


def test_little_is_told_of_a_mount_that_nobody_writes_to() -> None:
    nothing: dict[str, object] = {name: 0 for name, value in STATUS["writer"].items() if isinstance(value, int | float)}
    nothing |= {"memory_limit_bytes": 1 << 29, "drafts": [], "errors": {}, "lost": {}, "last_error": None}
    status = writing(**nothing)
    del status["writer"]["staged_bytes"]
    assert describe(status | {"requests": {}}).splitlines() == [
        "mount         hdfs://nn/data on /mnt/data",
        "written       0 B/s now, 0 B so far, 0 B sent; 0 files open",
        "write memory  0 B of 512 MiB",
        "parts         0 under way, 0 wait for a host; 0 retries",
        "published     0 versions",
        "write errors  none",
    ]


def test_a_mount_that_does_not_answer() -> None:
    assert describe({"mountpoint": "/m", "error": "gone", "hint": "umount it"}) == "mount  /m\nerror  gone; umount it"


def test_a_status_with_little_in_it() -> None:
    assert describe({"mountpoint": "/m", "source": "/s"}) == "mount  /s on /m"
