"""The limit that binds, on plain figures."""

from typing import Any

import pytest

from stripefs.cli.bottleneck import Sample, judge, utilisation

MB = 1_000_000


def sample(
    rate: float, shares: dict[str, float] | None = None, cpu: float = 0.0, loop: float = 0.0, machine: float = 0.0
) -> Sample:
    """Ten seconds at `rate` bytes a second; shares of each host, processor time in parts of one processor."""
    size = int(rate * 10)
    hosts = {host: int(part * size) for host, part in (shares or {}).items()}
    return Sample(size, 10.0, cpu * 10, loop * 10, machine, hosts)


EVEN = {f"h{i}": 1 / 8 for i in range(8)}
UNEVEN = {"h0": 0.3, **{f"h{i}": 0.1 for i in range(1, 8)}}


@pytest.mark.parametrize(
    ("parallel", "options", "limit"),
    [
        (sample(300 * MB, EVEN), {}, "cluster"),
        (sample(120 * MB, UNEVEN), {}, "placement"),
        (sample(40 * MB, {"h0": 1.0}), {}, "host"),
        (sample(40 * MB, {"h0": 1.0}), {"live": 1}, "host"),
        (sample(150 * MB, {f"h{i}": 0.25 for i in range(4)}), {}, "placement"),
        (sample(150 * MB, {f"h{i}": 0.25 for i in range(4)}), {"live": 4}, "cluster"),
        (sample(100 * MB, EVEN), {}, "stripefs"),
        (sample(300 * MB, EVEN, cpu=3.9), {}, "cpu"),
        (sample(100 * MB, EVEN, cpu=1.2, loop=0.99), {}, "cpu"),
        (sample(100 * MB, EVEN, cpu=0.5, machine=0.95), {}, "cpu"),
        (sample(300 * MB, EVEN, cpu=0.5, machine=0.5), {}, "cluster"),
        (sample(110 * MB, EVEN), {"link": ("eth0", 125 * MB)}, "link"),
        (sample(110 * MB, EVEN), {"link": ("eth0", 1250 * MB)}, "stripefs"),
        (sample(41 * MB), {"host_rate": 0, "live": 0}, "store"),
        (sample(400 * MB), {"host_rate": 0, "live": 0}, "stripefs"),
    ],
)
def test_what_binds(parallel: Sample, options: dict[str, Any], limit: str) -> None:
    """On four cores; of eight live hosts that send 40 MB a second each, where nothing else is said."""
    given = {"host_rate": 40 * MB, "live": 8, "link": None, **options}
    used = utilisation(parallel, host_rate=given["host_rate"], cores=4, link=given["link"])
    assert judge(sample(40 * MB), parallel, used, live_hosts=given["live"]).limit == limit
