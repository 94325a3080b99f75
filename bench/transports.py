"""Measure the two HDFS transports against each other: throughput and client CPU, by number of threads.

    python -m bench.transports hdfs://NAMENODE:PORT/FILE [--threads 1,8,16,24] [--rounds 3] [--no-tune] [--json FILE]

Each case reads the whole FILE once by block-aligned ranges, ranges spread over the replicas' hosts in turn where the
transport lets us choose. Rounds are interleaved over all cases, medians are shown, and the first round (which warms
the DataNodes' JVMs and page cache up) is not counted. Client CPU is user + system time of this process, hence of
all its threads, in seconds per 10^9 bytes.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import stripefs
from stripefs.settings import StoreSettings
from stripefs.store.allocator import tune_allocator
from stripefs.store.base import Handle
from stripefs.store.hdfs import HdfsStore

TRANSPORTS = ("webhdfs", "native")


def measure(handle: Handle, threads: int, range_size: int, *, chooses: bool) -> tuple[float, float]:
    """MB/s and CPU seconds per GB of one pass over the file; `chooses`: the transport takes a host."""
    ranges = [
        (start, min(range_size, block.offset + block.length - start), block.hosts)
        for block in handle.locate(0, handle.status.length)
        for start in range(block.offset, block.offset + block.length, range_size)
    ]

    def read(piece: tuple[int, int, tuple[str, ...]]) -> int:
        offset, length, hosts = piece
        host = hosts[offset // range_size % len(hosts)] if chooses and hosts else ""
        return len(handle.read(offset, length, host=host))

    cpu, wall = time.process_time(), time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        size = sum(pool.map(read, ranges))
    return size / 1e6 / (time.perf_counter() - wall), (time.process_time() - cpu) / (size / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--threads", default="1,8,16,24")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--range-size", type=int, default=8 << 20)
    parser.add_argument("--no-tune", action="store_true", help="leave glibc's allocator as it is")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tuned = not options.no_tune and tune_allocator()
    folder, _, name = options.url.rpartition("/")
    cases: dict[tuple[str, int], list[tuple[float, float]]] = {}
    handles = {}
    for transport in TRANSPORTS:
        store = HdfsStore(StoreSettings(url=folder + "/", transport=transport, host_timeout=60.0))
        handles[transport] = store.open(b"/" + name.encode()), store.capabilities.choose_host
    for round_number in range(options.rounds + 1):
        for threads in map(int, options.threads.split(",")):
            for transport, (handle, chooses) in handles.items():
                figures = measure(handle, threads, options.range_size, chooses=chooses)
                if round_number:
                    cases.setdefault((transport, threads), []).append(figures)
    report(cases, tuned, options.json)


def report(cases: dict[tuple[str, int], list[tuple[float, float]]], tuned: bool, file: Path | None) -> None:
    rows = []
    print(f"allocator {'tuned' if tuned else 'as it is'}; median (min to max)")
    for (transport, threads), figures in sorted(cases.items()):
        for metric, unit, values in (
            ("throughput", "MB/s", [rate for rate, _ in figures]),
            ("client_cpu", "s/GB", [cpu for _, cpu in figures]),
        ):
            middle, low, high = statistics.median(values), min(values), max(values)
            rows.append(
                {
                    "case": f"threads_{threads}",
                    "system": transport,
                    "metric": metric,
                    "unit": unit,
                    "median": middle,
                    "min": low,
                    "max": high,
                    "n": len(values),
                }
            )
            print(f"{transport:8} {threads:3} threads  {metric:10} {middle:8.2f} ({low:.2f} to {high:.2f}) {unit}")
    if file is not None:
        environment = {"machine": platform.machine(), "python": platform.python_version(), "allocator_tuned": tuned}
        document = {
            "bench": "transports",
            "version": stripefs.__version__,
            "environment": environment,
            "rows": rows,
            "ratios": [],
        }
        file.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
