"""Raw HDFS writers, to compare with: `python -m bench.write.raw` writes one job given as JSON on standard input:
{"kind": "native" or "placed", "url", "block_size", "replication", "files": [[path, size, http address], ...]}.

native       hdfs-native's own writer, one thread a file; the address is not used. It gives a file up when the NameNode
             has not heard of its last block yet, so a file may be of `segment` bytes at most each: PATH-0, PATH-1, …
             and only a segment is written again
placed       WebHDFS CREATE sent straight to the DataNode of that address, which keeps each block's first replica

All files are written at once. Answers with JSON {"bytes", "seconds", "cpu", "again"}: from the first create to the
last close, the client and its process being there already; `again` counts segments that had to be written twice. The
CPU time is without that of making the bytes.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

from bench.write.source import Source

__all__ = ["create_query", "main", "segments"]

_ATTEMPTS = 5
_TIMEOUT = 120.0


def create_query(url: str, block_size: int, replication: int) -> str:
    """The query of a CREATE that a DataNode answers itself, for the cluster at `url` (hdfs://host:port)."""
    rpc = url.removeprefix("hdfs://")
    return (
        f"op=CREATE&user.name=root&namenoderpcaddress={rpc}&createparent=true&overwrite=true"
        f"&blocksize={block_size}&replication={replication}"
    )


def segments(path: str, size: int, most: int) -> list[tuple[str, int, int]]:
    """(path, begin, length) of the files that hold `size` bytes, none longer than `most`; 0 for no limit."""
    if not most or size <= most:
        return [(path, 0, size)]
    return [(f"{path}-{n}", begin, min(most, size - begin)) for n, begin in enumerate(range(0, size, most))]


class _Native:
    def __init__(self, job: dict[str, Any]) -> None:
        from hdfs_native import Client, WriteOptions  # only the process that uses a client pays for importing it

        self.again = 0
        self._client = Client(job["url"])
        self._client.get_file_info("/")
        self._most: int = job.get("segment", 0)
        self._options = WriteOptions(
            block_size=job["block_size"], replication=job["replication"], create_parent=True, overwrite=True
        )

    def write(self, path: str, size: int, _web: str, source: Source) -> None:
        for name, begin, length in segments(path, size, self._most):
            for attempt in range(_ATTEMPTS):
                try:
                    self._segment(name, begin, length, source)
                    break
                except RuntimeError:  # how hdfs-native says NotReplicatedYet
                    if attempt + 1 == _ATTEMPTS:
                        raise
                    self.again += 1

    def _segment(self, path: str, begin: int, length: int, source: Source) -> None:
        writer = self._client.create(path, self._options)
        for piece in source.pieces(length, begin):
            writer.write(piece)
        writer.close()


class _Placed:
    def __init__(self, job: dict[str, Any]) -> None:
        self.again = 0
        self._query = create_query(job["url"], job["block_size"], job["replication"])

    def write(self, path: str, size: int, web: str, source: Source) -> None:
        connection = http.client.HTTPConnection(web, timeout=_TIMEOUT)
        try:
            connection.putrequest("PUT", f"/webhdfs/v1{quote(path)}?{self._query}")
            connection.putheader("Content-Type", "application/octet-stream")
            connection.putheader("Content-Length", str(size))
            connection.endheaders()
            for view in source.views(size):
                connection.send(view)
            answer = connection.getresponse()
            if answer.status != 201:
                raise RuntimeError(f"{web} answered {answer.status}: {answer.read()[:200]!r}")
        finally:
            connection.close()


def _write_all(job: dict[str, Any], write: Callable[[str, int, str, Source], None], sources: list[Source]) -> None:
    files = zip(job["files"], sources, strict=True)
    with ThreadPoolExecutor(len(sources)) as pool:
        for done in [pool.submit(write, path, size, web, source) for (path, size, web), source in files]:
            done.result()


def main() -> None:
    """Write the job on standard input and print its figures."""
    job = json.load(sys.stdin)
    client = _Native(job) if job["kind"] == "native" else _Placed(job)
    sources = [Source() for _ in job["files"]]
    cpu, begin = time.process_time(), time.monotonic()
    _write_all(job, client.write, sources)
    seconds = time.monotonic() - begin
    used = time.process_time() - cpu - sum(source.cpu for source in sources)
    count = sum(size for _, size, _ in job["files"])
    print(json.dumps({"bytes": count, "seconds": seconds, "cpu": used, "again": client.again}), flush=True)


if __name__ == "__main__":
    main()
