"""How a program saves a checkpoint: `python -m bench.write.program FILE SIZE` writes 8 MiB a time, then fsync, close.

Answers with JSON {"bytes", "seconds", "cpu", "sync", "close"}: seconds from open to the end of close, of which `sync`
and `close` in those two calls; CPU time of this process without that of making the bytes.
"""

from __future__ import annotations

import json
import os
import sys
import time

from bench.write.source import Source

__all__ = ["main", "save"]


def save(path: str, size: int, source: Source) -> tuple[float, float, float]:
    """Write the file; seconds of the whole, in fsync and in close."""
    begin = time.monotonic()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        for view in source.views(size):
            done = 0
            while done < len(view):
                done += os.write(descriptor, view[done:])
        written = time.monotonic()
        os.fsync(descriptor)
        durable = time.monotonic()
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    end = time.monotonic()
    return end - begin, durable - written, end - durable


def main() -> None:
    path, size = sys.argv[1], int(sys.argv[2])
    source = Source()
    cpu = time.process_time()
    seconds, sync, close = save(path, size, source)
    used = time.process_time() - cpu - source.cpu
    print(json.dumps({"bytes": size, "seconds": seconds, "cpu": used, "sync": sync, "close": close}), flush=True)


if __name__ == "__main__":
    main()
