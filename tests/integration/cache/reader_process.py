"""A process that reads files through the cache: SOURCE FOLDER SETTINGS PATH… in JSON on its first argument.

Prints a line of JSON for each file: its SHA-256, and what was fetched for it.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path

from stripefs.cache.cached_store import CachedStore
from tests.support.caches import MIB, cached, read

STORE = ("counting+throttled", "?rate=50MB/s&hosts=4&block-size=8MiB&placement=even")
"""Slower than any disk, as stores are: what is fetched does not wait for the disk for long then."""


def main(job: dict[str, object]) -> None:
    order = random.Random(int(str(job.get("seed", 0))))
    with cached(Path(str(job["source"])), Path(str(job["folder"])), *STORE, **dict(job["settings"])) as one:  # type: ignore[call-overload]
        print("ready", flush=True)
        sys.stdin.readline()
        for path in job["paths"]:  # type: ignore[attr-defined]
            before = one.counts.bytes
            found = digest(one.store, path.encode(), order, job)
            print(json.dumps({"path": path, "sha256": found, "fetched": one.counts.bytes - before}), flush=True)
        one.store.cache.queue.drain(60)


def digest(store: CachedStore, path: bytes, order: random.Random, job: dict[str, object]) -> str:
    """Of the file, whose ranges are read in an order of this process's own where "shuffled" is said."""
    handle = store.open(path)
    length = handle.status.length
    ranges = [(at, min(8 * MIB, length - at)) for at in range(0, length, 8 * MIB)]
    if job.get("shuffled"):
        order.shuffle(ranges)
    parts = {offset: read(handle, offset, size) for offset, size in ranges}
    handle.close()
    return hashlib.sha256(b"".join(parts[offset] for offset in sorted(parts))).hexdigest()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
