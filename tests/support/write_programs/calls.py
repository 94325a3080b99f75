"""Shells, and what the kernel can be asked for."""

from __future__ import annotations

import mmap
import os
import shutil
import sys

from tests.support.write_programs.place import MIB, Expected, Place, direct_buffer, opened, payload, write_all

__all__ = [
    "appending",
    "copying_inside",
    "direct",
    "mapping",
    "one_large_write",
    "seeking_back",
    "shell",
    "single_bytes",
    "synced_again_and_again",
]


def shell(place: Place) -> Expected:
    """Redirection shares one open file among processes, whose ends all look like a close."""
    place.shell("{ echo one; cat; echo three; } > out", stdin=b"two\n" * 300_000)
    place.shell("for i in 1 2 3; do echo $i; done > loop; (echo sub) > sub; echo tee | tee teed > /dev/null")
    place.shell("printf %s x > truncated; : > truncated; seq 10000 | sort -rn -o sorted")
    script = "import os, subprocess, sys; f = open('child', 'wb'); f.write(b'parent '); f.flush(); "
    script += "subprocess.run(['echo', 'child'], stdout=f); f.write(b'parent again'); f.close()"
    place.run(sys.executable, "-c", script, cwd=place.folder)
    return {
        "out": b"one\n" + b"two\n" * 300_000 + b"three\n",
        "loop": b"1\n2\n3\n",
        "sub": b"sub\n",
        "teed": b"tee\n",
        "truncated": b"",
        "sorted": b"".join(b"%d\n" % number for number in range(10_000, 0, -1)),
        "child": b"parent child\nparent again",
    }


def appending(place: Place) -> Expected:
    """Small pieces and large ones onto what is there, by >> and by O_APPEND."""
    place.shell("echo one > log; echo two >> log; echo three >> log")
    big = payload("first", 9 * MIB + 5)
    (place.folder / "grown").write_bytes(big)
    for number in range(3):
        with open(place.folder / "grown", "ab") as file:
            assert file.tell() == len(big)
            more = payload(f"more{number}", 1_000_001)
            file.write(more)
            big += more
    return {"log": b"one\ntwo\nthree\n", "grown": big}


def single_bytes(place: Place) -> Expected:
    data = payload("bytes", 5000)
    with opened(place.folder / "bytes", os.O_WRONLY | os.O_CREAT) as descriptor:
        for at in range(len(data)):
            assert os.write(descriptor, data[at : at + 1]) == 1
    return {"bytes": data}


def one_large_write(place: Place) -> Expected:
    data = payload("large", 100_000_001)
    with opened(place.folder / "large", os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
        write_all(descriptor, data)
        assert os.fstat(descriptor).st_size == len(data)
    return {"large": data}


def direct(place: Place) -> Expected:
    data = payload("direct", 12 * MIB)
    with opened(place.folder / "direct", os.O_WRONLY | os.O_CREAT | os.O_DIRECT) as descriptor:
        for start, size in ((0, 4096), (4096, 8 * MIB), (4096 + 8 * MIB, 4 * MIB - 4096)):
            with direct_buffer(size, data[start : start + size]) as buffer:
                assert os.write(descriptor, buffer) == size
    return {"direct": data}


def synced_again_and_again(place: Place) -> Expected:
    data = payload("synced", 6 * MIB)
    with opened(place.folder / "synced", os.O_WRONLY | os.O_CREAT) as descriptor:
        for start in range(0, len(data), 700_000):
            write_all(descriptor, data[start : start + 700_000])
            os.fsync(descriptor)
            os.fdatasync(descriptor)
    with opened(place.folder / "osync", os.O_WRONLY | os.O_CREAT | os.O_SYNC) as descriptor:
        write_all(descriptor, data[:100_000])
        write_all(descriptor, data[100_000:200_000])
    return {"synced": data, "osync": data[:200_000]}


def seeking_back(place: Place) -> Expected:
    """A length is patched into the begin of a file that has long been sent away."""
    data = bytearray(payload("seek", 20 * MIB))
    with open(place.folder / "seek", "wb") as file:
        file.write(data)
        file.seek(8)
        file.write(b"patched!")
        file.seek(0, os.SEEK_END)
        file.write(b"tail")
    data[8:16] = b"patched!"
    return {"seek": bytes(data) + b"tail"}


def mapping(place: Place) -> Expected:
    """An existing file changed through a shared mapping in two places; a second, larger, made by one."""
    data = bytearray(payload("map", 5 * MIB + 11))
    (place.folder / "map").write_bytes(data)
    with open(place.folder / "map", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[4 * MIB : 4 * MIB + 3] = b"two"
        mapped[17:20] = b"one"
        mapped.flush()
        mapped[100:103] = b"end"
    data[4 * MIB : 4 * MIB + 3], data[17:20], data[100:103] = b"two", b"one", b"end"
    return {"map": bytes(data)}


def copying_inside(place: Place) -> Expected:
    """From one file of the folder to another, by the kernel (copy_file_range, sendfile) and by shutil."""
    data = payload("inside", 9 * MIB + 7)
    (place.folder / "from").write_bytes(data)
    shutil.copyfile(place.folder / "from", place.folder / "shutil")
    with opened(place.folder / "from", os.O_RDONLY) as source:
        with opened(place.folder / "range", os.O_WRONLY | os.O_CREAT) as target:
            left = len(data)
            while left:
                left -= os.copy_file_range(source, target, left)
        with opened(place.folder / "sendfile", os.O_WRONLY | os.O_CREAT) as target:
            at = 0
            while at < len(data):
                at += os.sendfile(target, source, at, len(data) - at)
    return {"from": data, "shutil": data, "range": data, "sendfile": data}
