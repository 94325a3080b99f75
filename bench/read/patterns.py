"""Patterns in which programs read a file: `python -m bench.read.patterns PATTERN FILE`, each in a process of its own.

FILE is a path below a mount, or a URL, which is read by `stripefs.open` (all but the patterns that map).

sequential     one reader, 8 MiB a read, through the page cache
direct         16 threads, O_DIRECT, 1 MiB a read, each thread going through one contiguous sixteenth of the file: how
               the run:ai model streamer shares a file out
torch_load     torch.load of a zip checkpoint, replayed without torch: the directory at the end, the pickle at the
               front, then for each tensor a 4 KiB read of its local header and one read() of all its bytes
mmap_alternate two processes map a safetensors file (the real library) and copy out every other tensor each
mmap_all       the same, both copying out all

Answers with JSON {"bytes", "seconds", "cpu"}: bytes of the file that were wanted (once, however many processes got
them), from the first open to the last byte; the CPU time of the two mapping processes includes their start. The bytes
are checked to carry their page numbers (`bench.harness.data`).
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier

import stripefs
from bench.harness.data import MIB, wrong_page
from bench.harness.processes import own_cpu_seconds

__all__ = ["main", "torch_reads"]

_STEP = 8 * MIB
_DIRECT_THREADS = 16
_DIRECT_STEP = MIB
# From 8 to 131 MB, as measured on checkpoints of language models (attention, inner layers, embedding).
_TENSORS = (8 * MIB, 16 * MIB, 44 * MIB, 8 * MIB, 131_000_000 // 4096 * 4096, 33 * MIB)


class Clock:
    """Time at which the measurement began; a pattern that has to prepare itself begins it anew."""

    def __init__(self) -> None:
        self.begin = time.monotonic()

    def restart(self) -> None:
        self.begin = time.monotonic()


File = io.FileIO | stripefs.ReadFile


@contextmanager
def _opened(path: str, clock: Clock) -> Iterator[File]:
    """The file, unbuffered. For a URL the clock begins when its service is connected, as a mount is by then."""
    if "://" not in path:
        with open(path, "rb", buffering=0) as file:
            yield file
        return
    folder, _, name = path.rpartition("/")
    stripefs.connect(folder).stat("/")
    clock.restart()
    with stripefs.connect(folder).open(name) as read:
        yield read


def sequential(path: str, clock: Clock) -> int:
    buffer = memoryview(bytearray(_STEP))
    offset = 0
    with _opened(path, clock) as file:
        while count := file.readinto(buffer):
            _check(offset, buffer[:count])
            offset += count
    return offset


def direct(path: str, clock: Clock) -> int:
    """The file's size must be a multiple of 16 MiB, which O_DIRECT asks for anyway at the end of a file."""
    if "://" in path:
        with _opened(path, clock) as file:
            assert isinstance(file, stripefs.ReadFile)
            return _by_threads(file.size, file.pread_into)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        size = os.fstat(descriptor).st_size
        return _by_threads(size, lambda buffer, offset: os.preadv(descriptor, [buffer], offset))
    finally:
        os.close(descriptor)


def _by_threads(size: int, read: Callable[[memoryview, int], int]) -> int:
    share = size // _DIRECT_THREADS
    failures: list[Exception] = []

    def work(begin: int) -> None:
        with mmap.mmap(-1, _DIRECT_STEP) as memory, memoryview(memory) as buffer:  # page-aligned, as O_DIRECT wants
            for offset in range(begin, begin + share, _DIRECT_STEP):
                try:
                    count = read(buffer, offset)
                    if count != _DIRECT_STEP:
                        raise RuntimeError(f"{count} of {_DIRECT_STEP} bytes came back from {offset}")
                    _check(offset, buffer)
                except (OSError, RuntimeError) as error:
                    failures.append(error)
                    return

    threads = [threading.Thread(target=work, args=(i * share,)) for i in range(_DIRECT_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return share * _DIRECT_THREADS


def torch_reads(size: int) -> list[tuple[int, int]]:
    """(offset, length) of the reads that loading a zip checkpoint of `size` bytes makes, in order."""
    reads = [(size - 64 * 1024, 64 * 1024), (0, 4096), (4096, 256 * 1024)]
    offset = MIB
    for tensor in itertools.cycle(_TENSORS):
        length = min(tensor, size - MIB - offset - 4096)
        if length <= 0:
            return reads
        reads += [(offset, 4096), (offset + 4096, length)]
        offset += 4096 + length
    raise AssertionError("a cycle has no end")


def torch_load(path: str, clock: Clock) -> int:
    total = 0
    with _opened(path, clock) as file:
        reads = torch_reads(file.seek(0, os.SEEK_END))
        buffer = memoryview(bytearray(max(length for _, length in reads)))
        for offset, length in reads:
            file.seek(offset)
            got = 0
            while got < length and (count := file.readinto(buffer[got:length])):
                got += count
            if got != length:
                raise RuntimeError(f"{got} of {length} bytes came back from {offset}")
            _check(offset, buffer[:length])
            total += length
    return total


def mmap_alternate(path: str, clock: Clock) -> int:
    return _two_processes(path, clock, shared=False)


def mmap_all(path: str, clock: Clock) -> int:
    return _two_processes(path, clock, shared=True)


def _two_processes(path: str, clock: Clock, *, shared: bool) -> int:
    context = get_context("spawn")
    barrier = context.Barrier(3)
    processes = [context.Process(target=_copy_tensors, args=(path, rank, shared, barrier)) for rank in (0, 1)]
    for process in processes:
        process.start()
    barrier.wait(60)  # both have imported what they need
    clock.restart()
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a loading process ended with code {process.exitcode}")
    return os.stat(path).st_size


def _copy_tensors(path: str, rank: int, shared: bool, barrier: Barrier) -> None:
    import numpy as np
    from safetensors import safe_open

    barrier.wait(60)
    with safe_open(path, framework="numpy") as file:
        for number, name in enumerate(file.keys()):
            if shared or number % 2 == rank:
                tensor = file.get_tensor(name)
                numbers = tensor.view(np.uint64)[:: 4096 // 8]
                if len(numbers) > 1 and not (np.diff(numbers) == 1).all():
                    raise RuntimeError(f"the pages of {name} are not in order")


def _check(offset: int, data: bytes | memoryview) -> None:
    if complaint := wrong_page(offset, data):
        raise RuntimeError(complaint)


_PATTERNS: dict[str, Callable[[str, Clock], int]] = {
    "sequential": sequential,
    "direct": direct,
    "torch_load": torch_load,
    "mmap_alternate": mmap_alternate,
    "mmap_all": mmap_all,
}


def main(arguments: list[str] | None = None) -> None:
    """Run one pattern and print its figures."""
    parser = argparse.ArgumentParser(prog="bench.read.patterns")
    parser.add_argument("pattern", choices=sorted(_PATTERNS))
    parser.add_argument("file")
    options = parser.parse_args(arguments)
    cpu, clock = own_cpu_seconds(), Clock()
    count = _PATTERNS[options.pattern](options.file, clock)
    seconds = time.monotonic() - clock.begin
    print(json.dumps({"bytes": count, "seconds": seconds, "cpu": own_cpu_seconds() - cpu}))


if __name__ == "__main__":
    main()
