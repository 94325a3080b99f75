"""Raw HDFS clients, to compare with: `python -m bench.read.clients` reads one job as JSON from standard input:
{"kind", "url", "path", "step" for a stream, "threads" and "ranges" for parallel reads, "web" for WebHDFS}.

Each runs in a process of its own, so that its CPU time and its caches are its own, and answers with JSON:
{"bytes", "seconds", "cpu"}: from opening the file to the last byte, the client and its process being there already.
Every range is checked to begin with the page it should (`bench.harness.data`).
"""

from __future__ import annotations

import ctypes
import http.client
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

from bench.harness.data import MIB, wrong_page

__all__ = ["main"]

# M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD of <malloc.h>. Without these glibc maps and unmaps each range that
# hdfs-native answers with, which nearly doubles the client's CPU time.
_MALLOPT = {-3: 1 << 30, -1: 1 << 30, -2: 64 * MIB}

Read = Callable[[int, int], None]


def single_stream(job: dict[str, Any]) -> int:
    """hdfs-native's own sequential read, in steps of `step` bytes. The bytes read."""
    reader = _native(job["url"]).read(job["path"])
    offset = 0
    while data := reader.read(job["step"]):
        _check(offset, data)
        offset += len(data)
    return offset


def native(job: dict[str, Any]) -> int:
    """`read_range` of hdfs-native by `threads` threads. The bytes read."""
    reader = _native(job["url"]).read(job["path"])
    return _parallel(job, lambda: lambda offset, length: _check(offset, reader.read_range(offset, length)))


def libhdfs(job: dict[str, Any]) -> int:
    """`read_at` of pyarrow's libhdfs client by `threads` threads. The bytes read."""
    with _arrow(job["url"]).open_input_file(job["path"]) as file:
        return _parallel(job, lambda: lambda offset, length: _check(offset, file.read_at(length, offset)))


def webhdfs(job: dict[str, Any]) -> int:
    """OPEN straight at a DataNode that holds the range, one connection for each range. The bytes read.

    job["web"] holds the http address of the DataNode of each range.
    """
    where = {offset: web for (offset, _), web in zip(job["ranges"], job["web"], strict=True)}
    rpc = job["url"].removeprefix("hdfs://")

    def start() -> Read:
        buffer = memoryview(bytearray(MIB))

        def read(offset: int, length: int) -> None:
            connection = http.client.HTTPConnection(where[offset], timeout=60)
            query = f"op=OPEN&user.name=root&namenoderpcaddress={rpc}&offset={offset}&length={length}"
            connection.request("GET", f"/webhdfs/v1{quote(job['path'])}?{query}")
            answer = connection.getresponse()
            if answer.status != 200:
                raise RuntimeError(f"{where[offset]} answered {answer.status}: {answer.read()[:200]!r}")
            _fill(answer, offset, length, buffer)
            connection.close()

        return read

    return _parallel(job, start)


def _fill(answer: http.client.HTTPResponse, offset: int, length: int, buffer: memoryview) -> None:
    got = 0
    while got < length:
        count = answer.readinto(buffer)
        if not count:
            raise RuntimeError(f"{got} of {length} bytes came back from {offset}")
        if got == 0:
            _check(offset, buffer[:count])
        got += count


def _parallel(job: dict[str, Any], start: Callable[[], Read]) -> int:
    """Let `threads` threads work off job["ranges"] in order, each with a reader of its own from `start`."""
    ranges: Iterator[list[int]] = iter(job["ranges"])
    lock = threading.Lock()
    failed = threading.Event()

    def work() -> None:
        read = start()
        try:
            while not failed.is_set():
                with lock:
                    piece = next(ranges, None)
                if piece is None:
                    return
                read(*piece)
        except BaseException:  # hdfs-native panics are BaseExceptions
            failed.set()
            raise

    with ThreadPoolExecutor(job["threads"]) as pool:
        for done in [pool.submit(work) for _ in range(job["threads"])]:
            done.result()
    return sum(length for _, length in job["ranges"])


def _check(offset: int, data: Any) -> None:
    if complaint := wrong_page(offset, memoryview(data)):
        raise RuntimeError(complaint)


_clients: dict[str, Any] = {}


def _native(url: str) -> Any:
    if url not in _clients:
        from hdfs_native import Client  # only the process that uses a client pays for importing it

        _clients[url] = Client(url)
    return _clients[url]


def _arrow(url: str) -> Any:
    if url not in _clients:
        from pyarrow.fs import HadoopFileSystem

        host, _, port = url.removeprefix("hdfs://").partition(":")
        _clients[url] = HadoopFileSystem(host, int(port), user="root")
    return _clients[url]


_KINDS = {"single_stream": single_stream, "native": native, "libhdfs": libhdfs, "webhdfs": webhdfs}


def main() -> None:
    """Run the job on standard input and print its figures."""
    job = json.load(sys.stdin)
    libc = ctypes.CDLL(None)
    for option, value in _MALLOPT.items():
        libc.mallopt(option, value)
    if job["kind"] == "libhdfs":
        _arrow(job["url"]).get_file_info("/")  # the JVM starts here, before the clock does
    elif job["kind"] != "webhdfs":
        _native(job["url"]).get_file_info("/")
    cpu, begin = time.process_time(), time.monotonic()
    count = _KINDS[job["kind"]](job)
    seconds = time.monotonic() - begin
    print(json.dumps({"bytes": count, "seconds": seconds, "cpu": time.process_time() - cpu}), flush=True)


if __name__ == "__main__":
    main()
