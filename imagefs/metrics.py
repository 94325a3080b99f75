"""Prometheus metrics of the daemon and of the snapshotter: the tables of all of them (see `stripefs.metrics`).

No label holds a path in a store, a store or an image's name, but the URLs of mirrors are labels: the number of series
does not grow with what is mounted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from stripefs.metrics import Metric, Status, Values, at
from stripefs.metrics import render as render_page

__all__ = ["METRICS", "SNAPSHOTTER", "render"]


def _holders(status: Status) -> Values:
    """Each kind, also where there is none of it, so that no graph misses one."""
    found = Counter(holder["kind"] for image in status["images"] for holder in image["holders"])
    return [(kind, found[kind]) for kind in ("lease", "mount", "process")]


METRICS: tuple[Metric, ...] = (
    Metric("imagefs_build_info", "gauge", "Always 1; the label tells the version.",
           lambda status: [(str(status["version"]), 1)], "version"),
    Metric("imagefs_start_time_seconds", "gauge", "Time at which the daemon was started, in seconds since 1970.",
           at("started_at")),
    Metric("imagefs_worker_restarts_total", "counter", "Workers that were replaced under the mounts.", at("restarts")),
    Metric("imagefs_requests_total", "counter", "Requests of the kernel that were answered.",
           at("requests", "answered")),
    Metric("imagefs_failed_requests_total", "counter", "Requests that failed with a line in the log.",
           at("requests", "failed")),
    Metric("imagefs_images", "gauge", "Uses of images by mounts and containers.",
           lambda status: [("", len(status["images"]))]),
    Metric("imagefs_holders", "gauge", "Holders of attached images: processes, mounts without a process, leases.",
           _holders, "kind"),
    Metric("imagefs_snapshots", "gauge", "Dependency snapshots that are mounted.",
           lambda status: [("", sum(bool(one["snapshot"]) for one in status["images"]))]),
    Metric("imagefs_snapshot_users", "gauge", "Processes that use them.",
           lambda status: [("", sum(len(one["users"]) for one in status["images"]))]),
    Metric("imagefs_starts_total", "counter", "Starts that are over, by how they ended.",
           lambda status: sorted(status["starts"]["ended"].items()), "ended_by"),
    Metric("imagefs_planned_bytes_total", "counter", "Bytes that were fetched ahead of recorded starts.",
           at("starts", "planned_bytes")),
    Metric("imagefs_touched_bytes_total", "counter", "Bytes that recorded starts touched.",
           at("starts", "touched_bytes")),
    Metric("imagefs_planned_touched_bytes_total", "counter", "Bytes that were planned and touched.",
           at("starts", "both_bytes")),
    Metric("imagefs_cache_limit_bytes", "gauge", "Most bytes of blocks and documents on disk.", at("blocks", "limit")),
    Metric("imagefs_cache_used_bytes", "gauge", "Bytes of blocks and documents on disk.", at("blocks", "used")),
    Metric("imagefs_memory_limit_bytes", "gauge", "Most memory for blocks.", at("blocks", "memory", "limit")),
    Metric("imagefs_memory_used_bytes", "gauge", "Memory for blocks in use.", at("blocks", "memory", "used")),
    Metric("imagefs_reads_total", "counter", "Reads of devices.", at("blocks", "reads")),
    Metric("imagefs_read_bytes_total", "counter", "Bytes of devices that were read.", at("blocks", "bytes_read")),
    Metric("imagefs_block_hits_total", "counter", "Blocks found on this host, by place.",
           lambda status: sorted(status["blocks"]["hits"].items()), "source"),
    Metric("imagefs_fetched_bytes_total", "counter", "Stored bytes fetched from stores, by reason.",
           lambda status: [(kind, one["stored"]) for kind, one in sorted(status["blocks"]["fetched"].items())],
           "reason"),
    Metric("imagefs_upstream_bytes_total", "counter",
           "Stored bytes fetched from stores and from each mirror.",
           lambda status: sorted(status["blocks"]["upstreams"].items()), "upstream"),
    Metric("imagefs_mirror_avoided", "gauge", "1 while a mirror is not used after a failure.",
           lambda status: sorted({one["url"]: bool(one["reason"]) for one in status["blocks"]["mirrors"]}.items()),
           "mirror"),
    Metric("imagefs_served_bytes_total", "counter", "Bytes of blocks handed to readers, by place.",
           lambda status: sorted(status["blocks"]["served"].items()), "source"),
    Metric("imagefs_wait_seconds", "histogram", "Time for which reads waited for a store.", at("blocks", "waited")),
    Metric("imagefs_in_flight", "gauge", "Blocks on their way from a store.", at("blocks", "in_flight")),
    Metric("imagefs_retries_total", "counter", "Fetches that were tried again.", at("blocks", "retries")),
    Metric("imagefs_failures_total", "counter", "Blocks that could not be fetched.", at("blocks", "failures")),
    Metric("imagefs_damaged_blocks_total", "counter", "Blocks that failed their check, by place.",
           lambda status: sorted(status["blocks"]["damaged"].items()), "source"),
    Metric("imagefs_evicted_blocks_total", "counter", "Blocks given up for want of room.", at("blocks", "evicted")),
    Metric("imagefs_evicted_bytes_total", "counter", "Disk space of evicted blocks in bytes.",
           at("blocks", "evicted_bytes")),
    Metric("imagefs_unkept_blocks_total", "counter", "Blocks that found no place on disk.", at("blocks", "unkept")),
    Metric("imagefs_disk_errors_total", "counter", "Failures of the cache's disk.", at("blocks", "disk_errors")),
)  # fmt: skip


def _by(key: str) -> Callable[[Status], Values]:
    return lambda status: sorted(status[key].items())


SNAPSHOTTER: tuple[Metric, ...] = (
    Metric("imagefs_snapshotter_build_info", "gauge", "Always 1; the label tells the version.",
           lambda status: [(str(status["version"]), 1)], "version"),
    Metric("imagefs_snapshotter_start_time_seconds", "gauge",
           "Time at which the snapshotter was started, in seconds since 1970.", at("started_at")),
    Metric("imagefs_snapshotter_snapshots", "gauge", "Snapshots: committed layers, active ones of containers, views.",
           _by("snapshots"), "kind"),
    Metric("imagefs_snapshotter_lazy_snapshots", "gauge",
           "Those of them that are layers of lazy images, or stand on a lazy image.", _by("lazy"), "kind"),
    Metric("imagefs_snapshotter_prepares_total", "counter",
           "Prepares: of layers that a store has (lazy), that are pulled in full (fallback), and others (ordinary).",
           _by("prepared"), "result"),
    Metric("imagefs_snapshotter_rpc_seconds", "histogram", "Duration of calls, by method; of a List to its end.",
           _by("calls"), "method"),
    Metric("imagefs_snapshotter_rpc_errors_total", "counter",
           "Calls that were answered with an error, by its code; a Prepare of a lazy layer answers ALREADY_EXISTS.",
           _by("errors"), "code"),
)  # fmt: skip


def render(status: Status) -> str:
    """The daemon's page for this status, in the text format 0.0.4."""
    return render_page(status, METRICS)
