from __future__ import annotations

import subprocess
import sys

FRAGMENTED = """
from stripefs.store.allocator import Heap, tune_allocator, uninitialised
tune_allocator()
used = [1]
heap = Heap(lambda: used[0])
buffers = [uninitialised(300_000 + 1000 * (number % 400)) for number in range(600)]
for buffer in buffers:
    buffer[::4096] = bytes(len(buffer[::4096]))
whole = heap.free()
del buffers[::2]
assert heap.free() - whole > 100 << 20
assert heap.trim(busy=True) > 60 << 20
assert heap.free() - whole < 32 << 20
assert heap.trim(busy=True) == 0
del buffers[::10]
assert heap.trim(busy=False) == 0  # others are busy, and may have so much
used[0] = 0
assert heap.trim(busy=False) > 8 << 20
assert heap.trim(busy=False) == 0
"""


def test_what_was_freed_goes_back_when_it_is_much() -> None:
    subprocess.run([sys.executable, "-c", FRAGMENTED], check=True)
