"""Programs that create, read and list small files, each in a process of its own: `python -m bench.namenode.program`.

create PLACE COUNT SIZE   creates, writes and closes COUNT files of SIZE bytes
read PLACE COUNT SIZE     opens and reads each of them
list PLACE COUNT SIZE     names, sizes and times of all of them

PLACE is a folder of a mount, or a URL hdfs://… for hdfs-native. Each answers with JSON {"time"}, in seconds, and ends
with an error where the files are not those that `create` writes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

__all__ = ["content", "main", "name"]


def name(number: int) -> str:
    return f"file-{number:05}"


def content(number: int, size: int) -> bytes:
    return number.to_bytes(8, "little") * (size // 8)


def main(what: str, place: str, count: int, size: int) -> None:
    work = _Native(place) if place.startswith("hdfs://") else _Mounted(Path(place))
    began = time.perf_counter()
    match what:
        case "create":
            for number in range(count):
                work.create(name(number), content(number, size))
        case "read":
            for number in range(count):
                if work.read(name(number)) != content(number, size):
                    raise SystemExit(f"{name(number)} does not hold its bytes")
        case _:
            if work.listed() != {name(number): size for number in range(count)}:
                raise SystemExit(f"{place} does not list its files")
    print(json.dumps({"time": time.perf_counter() - began}))


class _Mounted:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create(self, name: str, data: bytes) -> None:
        (self._folder / name).write_bytes(data)

    def read(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def listed(self) -> dict[str, int]:
        with os.scandir(self._folder) as entries:
            return {entry.name: entry.stat().st_size for entry in entries}


class _Native:
    def __init__(self, url: str) -> None:
        from hdfs_native import Client

        host, _, path = url.removeprefix("hdfs://").partition("/")
        self._client = Client(f"hdfs://{host}")
        self._folder = f"/{path}"

    def create(self, name: str, data: bytes) -> None:
        writer = self._client.create(f"{self._folder}/{name}")
        writer.write(data)
        writer.close()

    def read(self, name: str) -> bytes:
        with self._client.read(f"{self._folder}/{name}") as file:
            data: bytes = file.read()
        return data

    def listed(self) -> dict[str, int]:
        found = self._client.list_status(self._folder)
        return {status.path.rpartition("/")[2]: status.length for status in found}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
