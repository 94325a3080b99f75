"""Reads and writes that check nothing: `python -m bench.ceiling.access CASE FILE SIZE`, in a process of its own.

Answers with JSON {"bytes", "seconds", "cpu"}, from the first open to the last close. `bench.ceiling.plan` tells the
cases. The bytes themselves are the business of tests: a check of each page would cost more than the mount does.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import threading
import time
from collections.abc import Callable
from contextlib import closing

from bench.harness.data import MIB
from bench.harness.processes import own_cpu_seconds

__all__ = ["main"]

_STEP = MIB


def sequential(path: str, size: int) -> int:
    return _in_parallel(path, size, 1, os.O_RDONLY)


def four_readers(path: str, size: int) -> int:
    return _in_parallel(path, size, 4, os.O_RDONLY)


def direct(path: str, size: int) -> int:
    return _in_parallel(path, size, 16, os.O_RDONLY | os.O_DIRECT)


def _in_parallel(path: str, size: int, readers: int, flags: int) -> int:
    """Read the file by so many threads, a contiguous share each. Raises RuntimeError where one came back short."""
    counts: list[int] = []

    def work(begin: int, end: int) -> None:
        descriptor = os.open(path, flags)
        offset = begin
        try:
            with closing(mmap.mmap(-1, _STEP)) as buffer:  # page-aligned, as O_DIRECT wants
                while offset < end and (count := os.preadv(descriptor, [buffer], offset)):
                    offset += count
        finally:
            os.close(descriptor)
            counts.append(offset - begin)

    share = size // readers
    threads = [threading.Thread(target=work, args=(i * share, (i + 1) * share)) for i in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if sum(counts) != size:
        raise RuntimeError(f"{sum(counts)} of {size} bytes came back")
    return size


def mapped(path: str, size: int) -> int:
    into = memoryview(bytearray(_STEP))
    with (
        open(path, "rb") as file,
        closing(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)) as memory,
        memoryview(memory) as view,
    ):
        for offset in range(0, size, _STEP):
            into[:] = view[offset : offset + _STEP]
    return size


def write(path: str, size: int) -> int:
    piece = memoryview(os.urandom(_STEP))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        for _ in range(size // _STEP):
            if os.write(descriptor, piece) != _STEP:
                raise RuntimeError(f"{path} took less than {_STEP} bytes of a write")
    finally:
        os.close(descriptor)
    return size


_CASES: dict[str, Callable[[str, int], int]] = {
    "sequential": sequential,
    "four_readers": four_readers,
    "mmap": mapped,
    "direct": direct,
    "write": write,
}


def main(arguments: list[str] | None = None) -> None:
    """Run one case and print its figures."""
    parser = argparse.ArgumentParser(prog="bench.ceiling.access")
    parser.add_argument("case", choices=sorted(_CASES))
    parser.add_argument("file")
    parser.add_argument("size", type=int)
    given = parser.parse_args(arguments)
    cpu, begin = own_cpu_seconds(), time.monotonic()
    count = _CASES[given.case](given.file, given.size)
    seconds = time.monotonic() - begin
    print(json.dumps({"bytes": count, "seconds": seconds, "cpu": own_cpu_seconds() - cpu}))


if __name__ == "__main__":
    main()
