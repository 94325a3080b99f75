"""What writers write: the pages of `bench.data`, stamped into one buffer again and again.

A program that saves a checkpoint has its bytes already; so the CPU time of making them is counted apart, and a writer
takes it off its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from bench.data import CHUNK, PAGE

__all__ = ["Source"]


class Source:
    """The bytes of files, for one thread. `cpu` is the thread's time that has gone into making them, in seconds."""

    def __init__(self, chunk: int = CHUNK) -> None:
        words: npt.NDArray[np.uint64] = np.random.default_rng(7).integers(0, 1 << 63, chunk // 8, dtype=np.uint64)
        self._pages = words.reshape(-1, PAGE // 8)
        self._view = words.data.cast("B")
        self.cpu = 0.0

    def views(self, size: int, begin: int = 0) -> Iterator[memoryview]:
        """The bytes [begin, begin + size) of a file; `begin` is a multiple of a page.

        Each view holds until the next one is asked for.
        """
        for start in range(begin, begin + size, len(self._view)):
            clock = time.thread_time()
            first = start // PAGE
            self._pages[:, 0] = np.arange(first, first + len(self._pages), dtype=np.uint64)
            view = self._view[: begin + size - start]
            self.cpu += time.thread_time() - clock
            yield view

    def pieces(self, size: int, begin: int = 0) -> Iterator[bytes]:
        """The same as bytes, for a client that takes nothing else."""
        for view in self.views(size, begin):
            clock = time.thread_time()
            piece = bytes(view)
            self.cpu += time.thread_time() - clock
            yield piece
