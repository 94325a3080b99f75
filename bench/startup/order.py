"""The order that a job reads, and the folder of a node that its container sees at `JOB`. Everything is written anew."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.deps.node import UV
from bench.harness.data import contents, tensor_elements
from bench.harness.environment import remove_tree
from bench.startup.accelerator import LIBRARIES
from bench.startup.plan import Size
from stripefs import startup_events

__all__ = [
    "CHECKPOINT",
    "COMMAND",
    "JOB",
    "PACKAGES",
    "checksum",
    "environment",
    "install_command",
    "lay_out",
]

JOB, PACKAGES, CHECKPOINT = "/opt/job", "/opt/deps", "/opt/checkpoint"
"""Their mountpoints inside the container."""

_PYTHON = "/usr/bin/python3"
_UV = f"{JOB}/uv"
COMMAND = (_PYTHON, f"{JOB}/job.py", f"{JOB}/order.json")


def lay_out(folder: Path, size: Size, pins: Sequence[str], told: Mapping[str, Any]) -> Path:
    """Make the folder of one start; answers that of its events.

    told: what differs between systems, `install`, `packages`, `stream` and `gpu` as `bench.startup.job` reads them.
    """
    remove_tree(folder)
    events = folder / "events"
    events.mkdir(parents=True)
    sources = [*map(Path(__file__).with_name, ("job.py", "cuda.py")), Path(startup_events.__file__)]
    if told["install"] and told["install"][0] == _UV:
        sources.append(UV)
    for source in sources:
        shutil.copy(source, folder)
    (folder / "requirements.txt").write_text("".join(f"{pin}\n" for pin in pins))
    where = "/bench" if told["stream"] else CHECKPOINT
    order = {
        **told,
        "image_modules": size.image_modules,
        "modules": size.modules,
        "framework": size.framework,
        "shards": {f"{where}/{file.name}": size.tensors for file in size.files},
    }
    (folder / "order.json").write_text(json.dumps(order))
    return events


def install_command(installer: str) -> list[str]:
    """In the container. Indexes and the rest are in `environment`."""
    common = ["--target", PACKAGES, "-r", f"{JOB}/requirements.txt"]
    if installer == "uv":
        return [_UV, "pip", "install", "--quiet", "--no-deps", "--python", _PYTHON, *common]
    return [_PYTHON, "-m", "pip", "install", "--quiet", *common]


def environment(index: str, run: str) -> dict[str, str]:
    """Of the container. index: the URL of a package index without TLS; run: names the start in its events."""
    return {
        "BOOTSEER_EVENTS": f"{JOB}/events",
        "BOOTSEER_JOB": "bench-startup",
        "BOOTSEER_RUN": run,
        "PIP_INDEX_URL": index,
        "PIP_TRUSTED_HOST": index.removeprefix("http://").partition(":")[0],
        "PIP_NO_DEPS": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "UV_INDEX_URL": index,
        "HADOOP_USER_NAME": "root",
        "LD_LIBRARY_PATH": LIBRARIES,
    }


def checksum(size: Size) -> str:
    """The checksum that the job has to print, from the bytes that were written to HDFS."""
    (first, *_) = size.files
    data = memoryview(b"".join(contents(first, 0, size.shard_size)))
    begin = 8 + int.from_bytes(data[:8], "little")
    found = 0
    for file in size.files:
        place = begin
        for name, count in tensor_elements(size.shard_size).items():
            start = zlib.crc32(f"{Path(file.name).name} {name}".encode())
            found ^= zlib.crc32(data[place : place + 2 * count], start)
            place += 2 * count
    return f"{found:08x}"
