"""Programs that write and list, each run in a process of its own by `python -m bench.write.programs`.

raw                     raw HDFS writers, to compare with; the job is JSON on standard input:
                        {"kind": "native" or "placed", "url", "block_size", "replication",
                        "files": [[path, size, http address], ...]}. All files are written at once
save FILE SIZE          a program that saves a checkpoint: writes 8 MiB a time, then fsync, close
list FOLDER COUNT LEN   names and lengths of a directory, twice; every entry must be a file of LEN bytes. Between the
                        two it waits until the kernel's attributes of the entries are out of date

Kinds of raw writers:

native  hdfs-native's own writer, one thread a file; the address is not used. It gives a file up when the NameNode has
        not heard of its last block yet, so a file may be of `segment` bytes at most each: PATH-0, PATH-1, … and only a
        segment is written again
placed  WebHDFS CREATE sent straight to the DataNode of that address, which keeps each block's first replica

Writers answer with JSON {"bytes", "seconds", "cpu"}: from open or create to the end of the last close, the client and
its process being there already; the CPU time is without that of making the bytes. A raw writer tells besides `again`,
the segments that had to be written twice, and a save `sync` and `close`, the seconds in those calls. A listing answers
{"cold", "again"}, in seconds.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from bench.harness.data import CHUNK, PAGE

__all__ = ["Source", "create_query", "list_directory", "main", "save", "segments"]

_ATTEMPTS = 5
_TIMEOUT = 120.0
_OUT_OF_DATE = 2.0  # seconds; the default of --attr-timeout is 1


class Source:
    """The bytes of files, pages of `bench.harness.data`, stamped into one buffer again and again; for one thread.

    `cpu` is the thread's time that has gone into making them, in seconds: a program that saves a checkpoint has its
    bytes already, so a writer takes it off its own.
    """

    def __init__(self, chunk: int = CHUNK) -> None:
        words: npt.NDArray[np.uint64] = np.random.default_rng(7).integers(0, 1 << 63, chunk // 8, dtype=np.uint64)
        self._pages = words.reshape(-1, PAGE // 8)
        self._view = words.data.cast("B")
        self.cpu = 0.0

    def views(self, size: int, begin: int = 0) -> Iterator[memoryview]:
        """The bytes [begin, begin + size) of a file; `begin` is a multiple of a page.

        Each view holds until the next one is asked for.
        """
        for start in range(begin, begin + size, len(self._view)):
            clock = time.thread_time()
            first = start // PAGE
            self._pages[:, 0] = np.arange(first, first + len(self._pages), dtype=np.uint64)
            view = self._view[: begin + size - start]
            self.cpu += time.thread_time() - clock
            yield view

    def pieces(self, size: int, begin: int = 0) -> Iterator[bytes]:
        """The same as bytes, for a client that takes nothing else."""
        for view in self.views(size, begin):
            clock = time.thread_time()
            piece = bytes(view)
            self.cpu += time.thread_time() - clock
            yield piece


# -- raw writers -------------------------------------------------------------------------------------------------------


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
                except RuntimeError:  # hdfs-native's NotReplicatedYet
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


def _raw(job: dict[str, Any]) -> dict[str, float]:
    client = _Native(job) if job["kind"] == "native" else _Placed(job)
    sources = [Source() for _ in job["files"]]
    cpu, begin = time.process_time(), time.monotonic()
    _write_all(job, client.write, sources)
    seconds = time.monotonic() - begin
    used = time.process_time() - cpu - sum(source.cpu for source in sources)
    count = sum(size for _, size, _ in job["files"])
    return {"bytes": count, "seconds": seconds, "cpu": used, "again": client.again}


# -- saving and listing ------------------------------------------------------------------------------------------------


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


def _save(path: str, size: int) -> dict[str, float]:
    source = Source()
    cpu = time.process_time()
    seconds, sync, close = save(path, size, source)
    used = time.process_time() - cpu - source.cpu
    return {"bytes": size, "seconds": seconds, "cpu": used, "sync": sync, "close": close}


def list_directory(folder: str, count: int, length: int) -> float:
    """Seconds for names and lengths of all entries. Raises RuntimeError unless they are as they should be."""
    begin = time.monotonic()
    with os.scandir(folder) as entries:
        lengths = [entry.stat(follow_symlinks=False).st_size for entry in entries]
    seconds = time.monotonic() - begin
    wrong = sum(1 for each in lengths if each != length)
    if len(lengths) != count or wrong:
        raise RuntimeError(f"{folder} lists {len(lengths)} of {count} files, {wrong} of them with a wrong length")
    return seconds


def _list(folder: str, count: int, length: int) -> dict[str, float]:
    cold = list_directory(folder, count, length)
    time.sleep(_OUT_OF_DATE)
    return {"cold": cold, "again": list_directory(folder, count, length)}


def main(act: str, *arguments: str) -> None:
    if act == "raw":
        told = _raw(json.load(sys.stdin))
    elif act == "save":
        told = _save(arguments[0], int(arguments[1]))
    else:
        told = _list(arguments[0], int(arguments[1]), int(arguments[2]))
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
