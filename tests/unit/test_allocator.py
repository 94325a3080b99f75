from __future__ import annotations

import subprocess
import sys

from stripefs.store.allocator import uninitialised


def test_a_buffer_has_its_size() -> None:
    for size in (0, 1, 5_000_000):
        buffer = uninitialised(size)
        assert type(buffer) is bytearray
        assert len(buffer) == size
        buffer[:] = bytes(size)
        assert buffer == bytes(size)


def test_glibc_takes_the_settings() -> None:
    code = (
        "import platform; from stripefs.store.allocator import bound_allocator, give_back, tune_allocator\n"
        "assert tune_allocator() == bound_allocator() == (platform.libc_ver()[0] == 'glibc')\n"
        "give_back()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
