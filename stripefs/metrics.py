"""Prometheus metrics of one mount: the table of all of them, and their text.

`METRICS` declares each once: docs/metrics.md and the page come from it. A metric looks its values up in the status of
a mount, the same dictionary that `stripefs status --json` prints (docs/json.md); values that it lacks are left out.

Units are base units. The counters of `requests` go on when a worker is replaced, those of `reader` and `writer` start
over, as Prometheus expects of a restart. No label holds a path. The text is written here because the format is a
screenful and the client library takes 48 ms to import; a test reads the text back with that library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["METRICS", "Metric", "Status", "Values", "at", "render"]

Status = Mapping[str, Any]
Values = Iterable[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Metric:
    """kind is counter, gauge or histogram. `values` yields (value of the label, figure) pairs; the first is "" without
    a label. The figure of a histogram is a mapping: `count`, `seconds`, and `within`, pairs of an upper bound and the
    count below it."""

    name: str
    kind: str
    help: str
    values: Callable[[Status], Iterable[tuple[str, Any]]]
    label: str = ""


def at(*keys: str, label: str = "") -> Callable[[Status], Values]:
    """The figure below these keys, if it is there."""

    def values(status: Status) -> Values:
        value: Any = status
        for key in keys:
            value = (value or {}).get(key)
        return [] if value is None else [(label, value)]

    return values


def _hosts(who: str, figure: Callable[[Mapping[str, Any]], float]) -> Callable[[Status], Values]:
    return lambda status: [(host["name"], figure(host)) for host in status.get(who, {}).get("hosts", ())]


def _errors(who: str, which: str) -> Callable[[Status], Values]:
    return lambda status: sorted(status.get(who, {}).get(which, {}).items())


def _lost(status: Status) -> Values:
    """Without a label, so that it stands at 0 before the first one and no alert misses that."""
    return [("", sum(status["writer"]["lost"].values()))] if "lost" in status.get("writer", {}) else []


def _sources(status: Status) -> Values:
    """The reader counts all bytes alike; the cache knows which were its own."""
    fetched = status.get("reader", {}).get("bytes_fetched")
    if fetched is None:
        return []
    if "cache" not in status:
        return [("store", fetched)]
    hit = status["cache"]["hit_bytes"]
    return [("store", max(0, fetched - hit)), ("cache", hit)]


METRICS: tuple[Metric, ...] = (
    Metric("stripefs_build_info", "gauge", "Always 1; the label tells the version.",
           lambda status: [(str(status["version"]), 1)], "version"),
    Metric("stripefs_start_time_seconds", "gauge", "Time at which the mount was made, in seconds since 1970.",
           at("started_at")),
    Metric("stripefs_worker_restarts_total", "counter", "Workers that were replaced under the mount.",
           at("restarts")),
    Metric("stripefs_requests_total", "counter", "Requests of the kernel that were answered.",
           at("requests", "answered")),
    Metric("stripefs_failed_requests_total", "counter", "Requests that failed with a line in the log.",
           at("requests", "failed")),
    Metric("stripefs_served_bytes_total", "counter", "Bytes handed to programs.", at("requests", "read_bytes")),
    Metric("stripefs_open_files", "gauge", "Files that programs hold open.", at("tree", "open_files")),
    Metric("stripefs_nodes", "gauge", "Versions of files and directories that the kernel knows.",
           at("tree", "nodes")),
    Metric("stripefs_reads_total", "counter", "Reads that asked for bytes of a file.", at("reader", "reads")),
    Metric("stripefs_read_wait_seconds_total", "counter", "Time that those reads took.",
           at("reader", "waited_seconds")),
    Metric("stripefs_starved_reads_total", "counter", "Reads that waited for their bytes; each may widen a window.",
           at("reader", "starved")),
    Metric("stripefs_read_bytes_total", "counter", "Bytes that came from the store, or from the cache.", _sources,
           "source"),
    Metric("stripefs_wasted_bytes_total", "counter", "Bytes fetched from the store that no reader used.",
           at("reader", "bytes_wasted")),
    Metric("stripefs_hedges_total", "counter", "Second attempts at another replica while the first went on.",
           at("reader", "hedges")),
    Metric("stripefs_hedge_wins_total", "counter", "Hedges that answered before the first attempt.",
           at("reader", "hedge_wins")),
    Metric("stripefs_retries_total", "counter", "Attempts after a failed one.", at("reader", "retries")),
    Metric("stripefs_dropped_ranges_total", "counter", "Read-ahead given up for want of memory.",
           at("reader", "dropped")),
    Metric("stripefs_store_errors_total", "counter", "Failed attempts by error.",
           _errors("reader", "errors"), "error"),
    Metric("stripefs_in_flight", "gauge", "Reads under way at the store.", at("reader", "in_flight")),
    Metric("stripefs_range_size_bytes", "gauge", "Size of one read from the store at present.",
           at("reader", "range_size")),
    Metric("stripefs_memory_budget_bytes", "gauge", "Most memory for data.", at("reader", "memory", "budget")),
    Metric("stripefs_memory_used_bytes", "gauge", "Memory for data in use.", at("reader", "memory", "used")),
    Metric("stripefs_memory_peak_bytes", "gauge", "Most memory for data that was in use at once.",
           at("reader", "memory", "peak")),
    Metric("stripefs_host_read_bytes_total", "counter", "Bytes from one data host, without those read by openings.",
           _hosts("reader", lambda host: host["bytes"]), "host"),
    Metric("stripefs_host_errors_total", "counter", "Failed attempts at one data host.",
           _hosts("reader", lambda host: host["errors"]), "host"),
    Metric("stripefs_host_in_flight", "gauge", "Reads under way at one data host.",
           _hosts("reader", lambda host: host["in_flight"]), "host"),
    Metric("stripefs_host_avoided", "gauge", "1 while a data host is avoided after a failure.",
           _hosts("reader", lambda host: 1 if host["avoided_seconds"] > 0 else 0), "host"),
    Metric("stripefs_cache_limit_bytes", "gauge", "Most room for the cache folder.", at("cache", "limit_bytes")),
    Metric("stripefs_cache_used_bytes", "gauge", "Room that the cache folder takes, of all who share it.",
           at("cache", "used_bytes")),
    Metric("stripefs_cache_filled_bytes_total", "counter", "Bytes written into the cache.",
           at("cache", "filled_bytes")),
    Metric("stripefs_cache_unfilled_bytes_total", "counter", "Bytes not kept for want of room or of a fast disk.",
           at("cache", "unfilled_bytes")),
    Metric("stripefs_cache_bypassed_bytes_total", "counter", "Bytes read past a disk that fails or is slow.",
           at("cache", "bypassed_bytes")),
    Metric("stripefs_cache_evicted_bytes_total", "counter", "Bytes removed to make room.",
           at("cache", "evicted_bytes")),
    Metric("stripefs_cache_damaged_blocks_total", "counter", "Blocks in the cache that failed their check.",
           at("cache", "damaged")),
    Metric("stripefs_cache_disk_errors_total", "counter", "Reads and writes that the cache's disk refused.",
           at("cache", "disk_errors")),
    Metric("stripefs_cache_waits_total", "counter", "Reads that waited for another process to fetch the same.",
           at("cache", "waits")),
    Metric("stripefs_written_bytes_total", "counter", "Bytes that programs wrote.", at("requests", "written_bytes")),
    Metric("stripefs_sent_bytes_total", "counter", "Bytes of parts and files that the store has taken.",
           at("writer", "sent_bytes")),
    Metric("stripefs_write_files", "gauge", "Files that are being written.", at("writer", "files")),
    Metric("stripefs_write_memory_budget_bytes", "gauge", "Most memory for data on its way to the store.",
           at("writer", "memory_limit_bytes")),
    Metric("stripefs_write_memory_used_bytes", "gauge", "Memory for data on its way to the store in use.",
           at("writer", "memory_bytes")),
    Metric("stripefs_write_memory_waits_total", "counter", "Writes that waited for memory.",
           at("writer", "memory_waits")),
    Metric("stripefs_write_memory_wait_seconds_total", "counter", "Time that those waited.",
           at("writer", "memory_waited_seconds")),
    Metric("stripefs_parts_in_flight", "gauge", "Parts on their way to the store.", at("writer", "parts_under_way")),
    Metric("stripefs_parts_waiting", "gauge", "Parts that wait for a data host.", at("writer", "parts_waiting")),
    Metric("stripefs_write_retries_total", "counter", "Attempts to write after a failed one.", at("writer", "retries")),
    Metric("stripefs_write_errors_total", "counter", "Failed attempts to write by error.",
           _errors("writer", "errors"), "error"),
    Metric("stripefs_lost_writes_total", "counter",
           "Writes that could not be kept, made durable or published.", _lost),
    Metric("stripefs_published_versions_total", "counter", "Versions of files that were published.",
           at("writer", "published_versions")),
    Metric("stripefs_buried_versions", "gauge", "Replaced striped versions that are kept for their readers.",
           at("writer", "buried_versions")),
    Metric("stripefs_staging_limit_bytes", "gauge", "Most room for staged files on local disk.",
           at("writer", "staging_size")),
    Metric("stripefs_staging_used_bytes", "gauge", "Room that staged files take, of all mounts that share the folder.",
           at("writer", "staged_bytes")),
    Metric("stripefs_host_sent_bytes_total", "counter", "Bytes that one data host has taken.",
           _hosts("writer", lambda host: host["bytes"]), "host"),
    Metric("stripefs_host_send_errors_total", "counter", "Parts that failed at one data host.",
           _hosts("writer", lambda host: host["errors"]), "host"),
    Metric("stripefs_host_parts_in_flight", "gauge", "Parts on their way to one data host.",
           _hosts("writer", lambda host: host["parts"]), "host"),
    Metric("stripefs_host_send_avoided", "gauge", "1 while no part is sent to a data host after a failure.",
           _hosts("writer", lambda host: 1 if host["avoided_seconds"] > 0 else 0), "host"),
)  # fmt: skip


def render(status: Status, metrics: Iterable[Metric] = METRICS) -> str:
    """The page of these metrics for this status, in the text format 0.0.4."""
    lines = []
    for metric in metrics:
        values = list(metric.values(status))
        if values:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        for label, value in values:
            where = f'{{{metric.label}="{_escaped(label)}"}}' if metric.label else ""
            if metric.kind == "histogram":
                lines += _histogram(metric.name, where[1:-1], value)
            else:
                lines.append(f"{metric.name}{where} {float(value):.17g}")
    return "\n".join(lines) + "\n"


def _histogram(name: str, own: str, figure: Mapping[str, Any]) -> list[str]:
    """own: the label of its own, `NAME="VALUE"`, or ""."""
    buckets = [*((f"{bound:g}", count) for bound, count in figure["within"]), ("+Inf", figure["count"])]
    first, whole = (f"{own},", f"{{{own}}}") if own else ("", "")
    lines = [f'{name}_bucket{{{first}le="{bound}"}} {float(count):.17g}' for bound, count in buckets]
    return [
        *lines,
        f"{name}_sum{whole} {float(figure['seconds']):.17g}",
        f"{name}_count{whole} {float(figure['count']):.17g}",
    ]


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
