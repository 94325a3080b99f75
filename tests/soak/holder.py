"""A process that holds one version of a file: `python -m tests.soak.holder FILE`, driven line by line.

It opens and maps FILE, reads its first page both ways and prints `{"version": NAME}`. Then for each word on standard
input it goes through the whole file past the page cache and prints what it saw: `{"versions": [names], "errors":
[names of errno], "bytes": N}`. `read` uses the descriptor; `map` the mapping, in a child, where an error is SIGBUS.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import signal
import sys

from tests.support.checked_content import CELL, PAGE, versions_in

_STEP = 64 << 10


def main() -> None:
    descriptor = os.open(sys.argv[1], os.O_RDONLY)
    size = os.fstat(descriptor).st_size
    mapping = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    (version,) = versions_in(os.pread(descriptor, PAGE, 0)) | versions_in(mapping[:PAGE])
    print(json.dumps({"version": version}), flush=True)
    for word in sys.stdin:
        mapping.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        seen = _read(descriptor, size) if word.strip() == "read" else _map(mapping, size)
        print(json.dumps(seen), flush=True)


def _read(descriptor: int, size: int) -> dict[str, object]:
    versions, errors, count = set(), set(), 0
    for offset in range(0, size, _STEP):
        try:
            data = os.pread(descriptor, _STEP, offset)
        except OSError as error:
            errors.add(errno.errorcode[error.errno or 0])
            continue
        versions |= versions_in(data)
        count += len(data)
    return {"versions": sorted(versions), "errors": sorted(errors), "bytes": count}


def _map(mapping: mmap.mmap, size: int) -> dict[str, object]:
    """Pages in the order of their place, until the first that cannot be had."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        for offset in range(0, size, PAGE):
            for version in versions_in(mapping[offset : offset + PAGE]):
                os.write(writer, version.encode().ljust(CELL))
        os._exit(0)
    os.close(writer)
    said = b""
    while chunk := os.read(reader, 1 << 16):
        said += chunk
    os.close(reader)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    versions = {said[at : at + CELL].decode().strip() for at in range(0, len(said), CELL)}
    errors = [signal.Signals(-status).name] if status < 0 else []
    return {"versions": sorted(versions), "errors": errors, "bytes": len(said) // CELL * PAGE}


if __name__ == "__main__":
    main()
