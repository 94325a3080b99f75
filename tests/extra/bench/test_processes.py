"""CPU time and memory of process trees, measured on processes that use a known kind of each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bench.harness.data import Extent
from bench.harness.processes import PeakMemory, cpu_seconds, pss, tree
from bench.read.driver import cut

# Both say "ready" once their work is done and end when their input does.
_BUSY_CHILD = """
import subprocess, sys, time
child = subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.3: pass"])
while time.process_time() < 0.1: pass
print("ready", flush=True)
sys.stdin.read()
"""
_HOLDS_64_MIB = """
import sys
held = bytearray(b"x") * (64 << 20)
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def running(program: str) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.stdin.close()


def test_cpu_time_includes_children_that_have_ended() -> None:
    with running(_BUSY_CHILD) as pid:
        assert cpu_seconds(pid) >= 0.38  # 0.3 + 0.1, less two clock ticks


def test_the_tree_holds_children_and_not_what_is_gone() -> None:
    with running(_HOLDS_64_MIB) as pid:
        assert pid in tree(os.getpid())
        assert tree(pid) == [pid]
    assert pid not in tree(os.getpid())
    assert cpu_seconds(pid) == 0
    assert pss([pid]) == 0


def test_peak_memory_sees_what_a_child_holds() -> None:
    with running(_HOLDS_64_MIB) as pid, PeakMemory(pid, period=0.01) as memory:
        pass
    assert memory.peak >= 64 << 20


def test_ranges_do_not_cross_blocks() -> None:
    blocks = [Extent(0, 20, ("a",)), Extent(20, 5, ("b",))]
    assert [(e.offset, e.length, e.hosts) for e in cut(blocks, 8)] == [
        (0, 8, ("a",)),
        (8, 8, ("a",)),
        (16, 4, ("a",)),
        (20, 5, ("b",)),
    ]
