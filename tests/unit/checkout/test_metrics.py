"""The page of metrics: one table in code and document, and text that Prometheus's parser reads."""

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from imagefs.metrics import METRICS as IMAGEFS_METRICS
from imagefs.metrics import SNAPSHOTTER
from imagefs.metrics import render as imagefs_render
from stripefs.metrics import METRICS, render
from tests.support.checkout import CHECKOUT

DOCUMENT = CHECKOUT / "docs/metrics.md"
BOARD = DOCUMENT.with_name("grafana-imagefs.json")

STATUS: dict[str, Any] = {
    "version": "1.2.3",
    "started_at": 1_700_000_000.5,
    "restarts": 2,
    "source": "hdfs://nn/data",
    "mountpoint": "/mnt/data",
    "requests": {"answered": 1000, "failed": 1, "read_bytes": (1 << 60) + 1, "written_bytes": (1 << 60) + 3},
    "tree": {"nodes": 12, "open_files": 3},
    "reader": {
        "memory": {"budget": 1 << 30, "used": 5 << 20, "peak": 9 << 20},
        "reads": 100,
        "bytes_read": 99,
        "bytes_fetched": 200,
        "bytes_wasted": 3,
        "throughput": 1e6,
        "starved": 4,
        "waited_seconds": 0.125,
        "hedges": 5,
        "hedge_wins": 1,
        "retries": 6,
        "dropped": 7,
        "errors": {"HostFailed": 2, "ServiceDown": 1},
        "corrupt": [],
        "in_flight": 8,
        "threads": 32,
        "range_size": 8 << 20,
        "hosts": [
            {"name": "10.0.0.1:9866", "in_flight": 1, "bytes": 10, "errors": 0, "avoided_seconds": 0.0},
            {"name": "10.0.0.2:9866", "in_flight": 2, "bytes": 20, "errors": 1, "avoided_seconds": 3.5},
        ],
        "files": [{"path": "/secret/name", "length": 3, "cursors": []}],
    },
    "writer": {
        "files": 11,
        "drafts": [{"path": "/secret/new", "layout": "striped", "length": 1 << 30, "memory": 3 << 20}],
        "throughput": 2e6,
        "memory_bytes": 3 << 20,
        "memory_limit_bytes": 1 << 29,
        "memory_waits": 12,
        "memory_waited_seconds": 61.5,
        "parts_under_way": 13,
        "parts_waiting": 14,
        "sent_bytes": 1 << 29,
        "retries": 15,
        "published_versions": 16,
        "buried_versions": 17,
        "errors": {"ServiceDown": 18, "HostFailed": 19},
        "lost": {"NoSpace": 20, "DraftLost": 21},
        "last_error": {"at": 1_700_000_100.0, "message": "/secret/old: no room"},
        "staged_bytes": 5 << 20,
        "staging_size": 6 << 20,
        "hosts": [
            {"name": "10.0.0.1:9866", "parts": 3, "files": 1, "bytes": 10, "errors": 0, "avoided_seconds": 0.0,
             "reason": ""},
            {"name": "10.0.0.2:9866", "parts": 2, "files": 0, "bytes": 20, "errors": 1, "avoided_seconds": 7.5,
             "reason": "no byte moved"},
        ],
    },
    "cache": {
        "directory": "/secret/folder",
        "used_bytes": 11,
        "limit_bytes": 12,
        "hit_bytes": 150,
        "missed_bytes": 50,
        "filled_bytes": 13,
        "unfilled_bytes": 14,
        "bypassed_bytes": 15,
        "evicted_bytes": 16,
        "damaged": 17,
        "disk_errors": 18,
        "waits": 19,
    },
}  # fmt: skip


def parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    return {
        (sample.name, tuple(sample.labels.items())): sample.value for family in families for sample in family.samples
    }


def test_every_metric_is_on_the_page_and_means_what_the_status_says() -> None:
    samples = parsed(render(STATUS))
    assert {name for name, _ in samples} == {metric.name for metric in METRICS}
    assert samples["stripefs_build_info", (("version", "1.2.3"),)] == 1
    assert samples["stripefs_start_time_seconds", ()] == 1_700_000_000.5
    assert samples["stripefs_served_bytes_total", ()] == float((1 << 60) + 1)
    assert samples["stripefs_read_bytes_total", (("source", "store"),)] == 50
    assert samples["stripefs_read_bytes_total", (("source", "cache"),)] == 150
    assert samples["stripefs_store_errors_total", (("error", "HostFailed"),)] == 2
    assert samples["stripefs_host_read_bytes_total", (("host", "10.0.0.2:9866"),)] == 20
    assert samples["stripefs_host_avoided", (("host", "10.0.0.1:9866"),)] == 0
    assert samples["stripefs_host_avoided", (("host", "10.0.0.2:9866"),)] == 1
    assert samples["stripefs_memory_used_bytes", ()] == 5 << 20
    assert samples["stripefs_open_files", ()] == 3
    assert samples["stripefs_written_bytes_total", ()] == float((1 << 60) + 3)
    assert samples["stripefs_sent_bytes_total", ()] == 1 << 29
    assert samples["stripefs_write_memory_used_bytes", ()] == 3 << 20
    assert samples["stripefs_write_memory_wait_seconds_total", ()] == 61.5
    assert samples["stripefs_parts_waiting", ()] == 14
    assert samples["stripefs_write_errors_total", (("error", "HostFailed"),)] == 19
    assert samples["stripefs_lost_writes_total", ()] == 41
    assert samples["stripefs_staging_limit_bytes", ()] == 6 << 20
    assert samples["stripefs_host_parts_in_flight", (("host", "10.0.0.1:9866"),)] == 3
    assert samples["stripefs_host_sent_bytes_total", (("host", "10.0.0.2:9866"),)] == 20
    assert samples["stripefs_host_send_avoided", (("host", "10.0.0.2:9866"),)] == 1


def test_what_a_status_lacks_is_left_out() -> None:
    status = {key: value for key, value in STATUS.items() if key in ("version", "restarts", "reader")}
    status["reader"] = {key: value for key, value in STATUS["reader"].items() if key in ("reads", "hosts")}
    names = {name for name, _ in parsed(render(status))}
    assert {"stripefs_reads_total", "stripefs_worker_restarts_total", "stripefs_host_in_flight"} <= names
    assert names.isdisjoint({"stripefs_open_files", "stripefs_memory_used_bytes", "stripefs_store_errors_total"})
    assert {name for name, _ in parsed(render({"version": "1"}))} == {"stripefs_build_info"}
    without = {key: value for key, value in STATUS.items() if key != "cache"}
    assert parsed(render(without))["stripefs_read_bytes_total", (("source", "store"),)] == 200


def test_a_mount_that_is_only_read_tells_nothing_of_writing() -> None:
    writing = {name for name, _ in parsed(render({"version": "1", "writer": STATUS["writer"]}))}
    reading = {name for name, _ in parsed(render({key: STATUS[key] for key in STATUS if key != "writer"}))}
    assert reading.isdisjoint(writing - {"stripefs_build_info"})
    assert reading | writing == {metric.name for metric in METRICS}


def test_what_was_lost_stands_at_nothing_before_the_first_loss() -> None:
    assert parsed(render({"version": "1", "writer": {"lost": {}}}))["stripefs_lost_writes_total", ()] == 0


def test_names_follow_the_conventions() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"stripefs_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.label != "path"
        assert metric.help.endswith(".")


def test_the_daemon_of_imagefs_has_a_page_too() -> None:
    fetched = {"ranges": 1, "blocks": 2, "bytes": 3, "stored": 4}
    blocks = {
        "limit": 100, "used": 50, "memory": {"limit": 10, "used": 5}, "reads": 7, "bytes_read": 8,
        "hits": {"memory": 1, "disk": 2, "peer": 3}, "fetched": {"demand": fetched, "ahead": fetched},
        "served": {"memory": 1, "disk": 2, "peer": 3, "store": 4},
        "upstreams": {"store": 6, "http://mirror": 7},
        "mirrors": [{"url": "http://mirror", "avoided_for": 0.0, "reason": "it is slow"}],
        "waited": {"count": 3, "seconds": 1.5, "within": [[0.5, 2], [1.0, 2]]},
        "in_flight": 0, "retries": 0, "failures": 0,
        "damaged": {"arrival": 0, "disk": 1}, "evicted": 0, "evicted_bytes": 5, "unkept": 0, "disk_errors": 0,
    }  # fmt: skip
    status = {key: STATUS[key] for key in ("version", "started_at", "restarts", "requests")}
    images = [
        {"snapshot": "", "users": [], "holders": [{"kind": "lease"}, {"kind": "lease"}]},
        {"snapshot": "ab", "users": [[1, 2], [3, 4]], "holders": [{"kind": "process"}]},
    ]
    starts = {"ended": {"ready": 2}, "planned_bytes": 10, "touched_bytes": 8, "both_bytes": 6}
    samples = parsed(imagefs_render({**status, "images": images, "starts": starts, "blocks": blocks}))
    named = {re.sub("_(bucket|sum|count)$", "", name) for name, _ in samples}
    assert named == {metric.name for metric in IMAGEFS_METRICS}
    assert samples["imagefs_images", ()] == 2
    assert samples["imagefs_snapshots", ()] == 1
    assert samples["imagefs_snapshot_users", ()] == 2
    assert [samples["imagefs_wait_seconds_bucket", (("le", le),)] for le in ("0.5", "1", "+Inf")] == [2, 2, 3]
    assert (samples["imagefs_wait_seconds_sum", ()], samples["imagefs_wait_seconds_count", ()]) == (1.5, 3)
    assert samples["imagefs_holders", (("kind", "lease"),)] == 2
    assert samples["imagefs_holders", (("kind", "mount"),)] == 0
    assert samples["imagefs_block_hits_total", (("source", "peer"),)] == 3
    assert samples["imagefs_fetched_bytes_total", (("reason", "ahead"),)] == 4
    assert samples["imagefs_upstream_bytes_total", (("upstream", "http://mirror"),)] == 7
    assert samples["imagefs_mirror_avoided", (("mirror", "http://mirror"),)] == 1


def test_the_snapshotter_has_a_page_too() -> None:
    waited = {"count": 3, "seconds": 1.5, "within": [[0.5, 2], [1.0, 2]]}
    kinds = {"active": 3, "committed": 2, "view": 0}
    status = {
        "version": "1.2.3", "started_at": 1.5, "snapshots": kinds, "lazy": {**kinds, "active": 1},
        "prepared": {"lazy": 4, "fallback": 5, "ordinary": 6}, "calls": {"Prepare": waited, "Stat": waited},
        "errors": {"NOT_FOUND": 7},
    }  # fmt: skip
    text = render(status, SNAPSHOTTER)
    samples = parsed(text)
    named = {re.sub("_(bucket|sum|count)$", "", name) for name, _ in samples}
    assert named == {metric.name for metric in SNAPSHOTTER}
    assert dict(re.findall(r"# TYPE (\S+) (\S+)", text)) == {metric.name: metric.kind for metric in SNAPSHOTTER}
    assert samples["imagefs_snapshotter_snapshots", (("kind", "view"),)] == 0
    assert samples["imagefs_snapshotter_lazy_snapshots", (("kind", "active"),)] == 1
    assert samples["imagefs_snapshotter_prepares_total", (("result", "fallback"),)] == 5
    assert samples["imagefs_snapshotter_rpc_seconds_bucket", (("method", "Stat"), ("le", "0.5"))] == 2
    assert samples["imagefs_snapshotter_rpc_seconds_bucket", (("method", "Prepare"), ("le", "+Inf"))] == 3
    assert samples["imagefs_snapshotter_rpc_seconds_sum", (("method", "Prepare"),)] == 1.5
    assert samples["imagefs_snapshotter_rpc_errors_total", (("code", "NOT_FOUND"),)] == 7


def test_no_path_is_told() -> None:
    assert "/secret" not in render(STATUS)
    assert "/mnt" not in render(STATUS)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]).filter(lambda c: c.isprintable() or c == "\n")))
def test_any_label_survives(text: str) -> None:
    assert ("stripefs_build_info", (("version", text),)) in parsed(render(STATUS | {"version": text}))


def test_the_document_holds_the_same_table() -> None:
    rows = re.findall(r"^\| `(\w+)(?:\{(\w+)\})?` \| (\w+) \| (.+) \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert rows == [(m.name, m.label, m.kind, m.help) for m in (*METRICS, *IMAGEFS_METRICS, *SNAPSHOTTER)]


def test_the_board_asks_for_nothing_that_is_not_served() -> None:
    """Each name, and each label that a query sums by or picks."""
    served = (*IMAGEFS_METRICS, *SNAPSHOTTER)
    labels = {metric.name: {metric.label} for metric in served if metric.kind != "histogram"}
    for metric in served:
        if metric.kind == "histogram":
            own = {metric.label}
            labels |= {f"{metric.name}_bucket": {"le", *own}, f"{metric.name}_sum": own, f"{metric.name}_count": own}
    board = json.loads(BOARD.read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    asked = {name for query in queries for name in re.findall(r"\bimagefs_\w+", query)}
    assert asked <= labels.keys()
    assert {metric.name for metric in SNAPSHOTTER if metric.kind == "counter"} <= asked
    assert {"imagefs_holders", "imagefs_served_bytes_total", "imagefs_wait_seconds_bucket"} <= asked
    for query in queries:
        known = {label for name in re.findall(r"\bimagefs_\w+", query) for label in labels[name]} | {"instance"}
        summed = re.findall(r"by \(([^)]*)\)", query) + re.findall(r"(\w+)[=!]~?\"", query)
        assert {label.strip() for one in summed for label in one.split(",")} <= known
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
