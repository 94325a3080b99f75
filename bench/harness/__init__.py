"""The harness of all benchmarks: rounds, samples, tables, and the systems that several of them measure.

results      samples, ratios, the JSON document
rounds       how often and in which order runs are measured, and what their failures become
report       tables, charts and their places in the docs
environment  facts of the machine; its caches; the folder that a benchmark works in
programs     programs that are run, served or waited for, whose failures are one line
processes    processor time and memory of process trees, from /proc
data         the bytes of files, which every reader can check
sizes        bytes of trees, and of what is new in them
cluster      an HDFS of several processes
mounts       stripefs and rclone mounts
host         a host with an imagefs daemon and a cache of its own
netns        network namespaces and the rates of their links
link         a link with a rate and a round trip time, and servers behind it
delay        the proxy that gives the link its round trip time, a process of its own
start        a job that imports modules and says when it is ready; run by other interpreters, never imported here
peers        rclone, libhdfs and torch, which do not come with the package
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

__all__ = ["ROOT", "BenchError", "Say"]

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""

Say = Callable[[str], None]
"""Shows a line about progress."""


class BenchError(Exception):
    """One line that says what stands in the way of a benchmark, and what to do."""
