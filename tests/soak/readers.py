"""A reader that checks every byte: `python -m tests.soak.readers KIND SEED PAUSE FOLDER`, a process of its own.

It reads the files of FOLDER, whose contents are those of `tests.support.checked_content` under their own names, over
and over and past the page cache, PAUSE seconds after each read, until its standard input ends. It prints a line of JSON
now and then, `{"reads": N, "bytes": N}`, and `{"error": TEXT}` with exit status 1 at the first wrong byte or failed
call. All but `sequential` open each file once and keep it open to the end.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

from tests.support.checked_content import PAGE, difference

__all__ = ["KINDS"]

MIB = 1 << 20
_STEP = 256 << 10
_TELL_EVERY = 0.2

Piece = tuple[str, int, bytes]
"""File name, offset, what was read there."""


def sequential(files: list[Path], rng: random.Random) -> Generator[Piece]:
    """Whole files from begin to end, each time opened anew."""
    while True:
        file = rng.choice(files)
        with _opened(file) as descriptor:
            size, offset = os.fstat(descriptor).st_size, 0
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            while data := os.read(descriptor, _STEP):
                yield file.name, offset, data
                offset += len(data)
            if offset != size:
                raise ValueError(f"{file.name} ended after {offset} of {size} bytes")


def pread(files: list[Path], rng: random.Random) -> Generator[Piece]:
    """Random ranges of any alignment, 1 byte to 1 MiB."""
    with _kept(files, os.O_RDONLY) as kept:
        while True:
            name, descriptor, size = rng.choice(kept)
            offset = rng.randrange(size)
            length = min(rng.randint(1, rng.choice((PAGE, MIB))), size - offset)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            yield name, offset, _whole(os.pread(descriptor, length, offset), length, name)


def mapped(files: list[Path], rng: random.Random) -> Generator[Piece]:
    """Mappings: runs of pages forward from random places, dropped from process and page cache before each."""
    with _kept(files, os.O_RDONLY) as kept, contextlib.ExitStack() as stack:
        maps = [
            (*entry, stack.enter_context(mmap.mmap(entry[1], entry[2], prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)))
            for entry in kept
        ]
        while True:
            name, descriptor, size, mapping = rng.choice(maps)
            mapping.madvise(mmap.MADV_DONTNEED)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            start = rng.randrange(size) // PAGE * PAGE
            stop = min(size, start + rng.randint(1, 4 * MIB))
            for offset in range(start, stop, _STEP):
                yield name, offset, mapping[offset : min(stop, offset + _STEP)]


def direct(files: list[Path], rng: random.Random) -> Generator[Piece]:
    """O_DIRECT reads of up to 1 MiB at multiples of 4 KiB."""
    with _kept(files, os.O_RDONLY | os.O_DIRECT) as kept, mmap.mmap(-1, MIB) as buffer:
        while True:
            name, descriptor, size = rng.choice(kept)
            offset = rng.randrange(size) // PAGE * PAGE
            length = rng.randint(1, MIB // PAGE) * PAGE
            with memoryview(buffer)[:length] as view:
                got = os.preadv(descriptor, [view], offset)
                yield name, offset, _whole(bytes(view[:got]), min(length, size - offset), name)


KINDS: dict[str, Callable[[list[Path], random.Random], Generator[Piece]]] = {
    "sequential": sequential,
    "pread": pread,
    "mmap": mapped,
    "direct": direct,
}


@contextlib.contextmanager
def _opened(file: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    descriptor = os.open(file, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _kept(files: list[Path], flags: int) -> Iterator[list[tuple[str, int, int]]]:
    """(name, descriptor, size) of each file, open until the block ends."""
    with contextlib.ExitStack() as stack:
        descriptors = [stack.enter_context(_opened(file, flags)) for file in files]
        yield [
            (file.name, descriptor, os.fstat(descriptor).st_size)
            for file, descriptor in zip(files, descriptors, strict=True)
        ]


def _whole(data: bytes, length: int, name: str) -> bytes:
    if len(data) != length:
        raise ValueError(f"{name}: {len(data)} bytes where {length} were asked for")
    return data


def main() -> int:
    kind, seed, pause, folder = sys.argv[1:]
    files = sorted(entry for entry in Path(folder).iterdir() if entry.is_file())
    over = threading.Event()

    def wait_for_the_end() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    reads = count = 0
    told = 0.0
    try:
        with contextlib.closing(KINDS[kind](files, random.Random(int(seed)))) as pieces:
            for name, offset, data in pieces:
                if problem := difference(data, name, offset):
                    raise ValueError(problem)
                reads, count = reads + 1, count + len(data)
                if over.wait(float(pause)):
                    break
                if time.monotonic() - told > _TELL_EVERY:
                    told = time.monotonic()
                    _say({"reads": reads, "bytes": count})
    except (OSError, ValueError) as error:
        _say({"error": f"{kind} reader, after {reads} reads: {error}"})
        return 1
    _say({"reads": reads, "bytes": count})
    return 0


def _say(message: dict[str, object]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.exit(main())
