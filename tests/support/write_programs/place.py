"""The folder of a program's files, and helpers that all programs use."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MIB", "Expected", "Place", "Program", "direct_buffer", "opened", "payload", "write_all"]

MIB = 1 << 20

Expected = dict[str, bytes]
"""Name below the folder -> what the file holds."""


@dataclass(frozen=True)
class Place:
    """`folder` is written into; `aside` is a plain directory for what the program needs besides."""

    folder: Path
    aside: Path

    def run(self, *command: object, stdin: bytes = b"", cwd: Path | None = None) -> bytes:
        """A program that must succeed and say nothing on standard error; its output."""
        done = subprocess.run(list(map(str, command)), input=stdin, capture_output=True, cwd=cwd, check=False)
        assert (done.returncode, done.stderr) == (0, b""), (command, done.returncode, done.stderr.decode())
        return done.stdout

    def shell(self, script: str, stdin: bytes = b"") -> bytes:
        return self.run("bash", "-euc", script, stdin=stdin, cwd=self.folder)


Program = Callable[[Place], Expected]


def payload(seed: str, size: int) -> bytes:
    """`size` bytes that differ everywhere, the same for the same seed."""
    return random.Random(seed).randbytes(size)


@contextlib.contextmanager
def opened(path: Path, flags: int, mode: int = 0o644) -> Iterator[int]:
    descriptor = os.open(path, flags, mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def direct_buffer(size: int, content: bytes = b"") -> mmap.mmap:
    """Memory that O_DIRECT accepts."""
    buffer = mmap.mmap(-1, size)
    buffer[: len(content)] = content
    return buffer
