"""Figures as people read them, and the page of `stripefs status`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.cli.show import columns, duration, rate, table
from stripefs.cli.status import describe

from .test_metrics import STATUS


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
    status = STATUS | {
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


def test_a_mount_that_does_not_answer() -> None:
    assert describe({"mountpoint": "/m", "error": "gone", "hint": "umount it"}) == "mount  /m\nerror  gone; umount it"


def test_a_status_with_little_in_it() -> None:
    assert describe({"mountpoint": "/m", "source": "/s"}) == "mount  /s on /m"
