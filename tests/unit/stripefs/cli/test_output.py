"""Figures as people read them, and the page of `stripefs status`."""

from collections.abc import Callable
from typing import Any

import pytest

from stripefs.cli.output import duration, rate
from stripefs.cli.status import describe
from tests.unit.checkout.test_metrics import STATUS


@pytest.mark.parametrize(
    ("show", "value", "text"),
    [
        (rate, 999, "999 B/s"),
        (rate, 1500, "1.5 kB/s"),
        (rate, 222.4e6, "222 MB/s"),
        (rate, 3.21e12, "3210 GB/s"),
        (duration, 59.9, "59 s"),
        (duration, 61, "1 min 1 s"),
        (duration, 3600, "1 h 0 min"),
        (duration, 90000, "1 d 1 h"),
        (duration, 86400 * 400, "400 d 0 h"),
    ],
)
def test_figures(show: Callable[[float], str], value: float, text: str) -> None:
    assert show(value) == text


def writing(**changed: object) -> dict[str, Any]:
    """The status of a mount with --rw."""
    return STATUS | {"writer": STATUS["writer"] | changed}


def test_the_status_page() -> None:
    status = writing(drafts=STATUS["writer"]["drafts"] * 12) | {
        "worker_pid": 7,
        "generation": 3,
        "kernel": {
            "read_ahead_kb": {"wanted": 4096, "now": 128, "limit": "/sys/x: Permission denied"},
            "max_background": {"wanted": 64, "now": 64, "limit": ""},
        },
        "store": {"transport": "webhdfs", "why": "by rule"},
    }
    files = [{"path": "/a", "length": 1 << 30, "cursors": [{"position": 1 << 20, "window": 8 << 20}]}] * 13
    hosts = [host | {"reason": "timed out"} for host in STATUS["reader"]["hosts"]]
    status["reader"] = STATUS["reader"] | {"files": files, "hosts": hosts}
    page = describe(status)
    for text in (
        "hdfs://nn/data on /mnt/data",
        "transport  ",
        "process 7, generation 3, 2 restarts, up ",
        "read_ahead_kb 128 (/sys/x: Permission denied), max_background 64",
        "1000 requests, 1 failed",
        "2 HostFailed, 1 ServiceDown",
        "and 3 more",
        "4 s: timed out",
        "19 HostFailed, 18 ServiceDown",
        "21 DraftLost, 20 NoSpace",
        "5 MiB of 6 MiB",
        "ago: /secret/old: no room",
        "/secret/new ",
        "and 2 more",
        "8 s: no byte moved",
    ):
        assert text in page


def test_little_is_told_of_a_mount_that_nobody_writes_to() -> None:
    nothing: dict[str, object] = {name: 0 for name, value in STATUS["writer"].items() if isinstance(value, int | float)}
    nothing |= {"memory_limit_bytes": 1 << 29, "drafts": [], "errors": {}, "lost": {}, "last_error": None}
    writer = writing(**nothing)["writer"]
    del writer["staged_bytes"]
    page = describe({"source": "/s", "mountpoint": "/m", "requests": {}, "writer": writer})
    assert "write errors  none" in page
    for text in ("\nlost", "\nstaged", "waited", "kept for", "last error", "being written", "data host"):
        assert text not in page


@pytest.mark.parametrize(
    ("status", "page"),
    [
        ({"mountpoint": "/m", "error": "gone", "hint": "umount it"}, "mount  /m\nerror  gone; umount it"),
        ({"mountpoint": "/m", "source": "/s"}, "mount  /s on /m"),
    ],
)
def test_a_status_with_little_in_it(status: dict[str, Any], page: str) -> None:
    assert describe(status) == page
