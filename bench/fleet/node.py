"""One node's start, as `bench fleet` plays it; run inside the node's network namespace.

    python -m bench.fleet.node lazy STORE#TAG MOUNTPOINT LIST    mounts the image and reads the files that LIST names
    python -m bench.fleet.node whole URL FOLDER LAYERS           fetches layers, three at a time, and unpacks them

Waits for a line on standard input, and prints {"seconds": …, "cpu": …} when it is done: from that line on, and the
processor time of this process and what it ran.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.harness.processes import own_cpu_seconds

_LAYERS_AT_ONCE = 3  # as containerd has it
_PIECE = 1 << 20
_TIMEOUT = 300.0


def lazy(image: str, mountpoint: str, names: str) -> None:
    program = Path(sys.executable).with_name("imagefs")
    subprocess.run([program, "mount", "--no-record", image, mountpoint], check=True)
    for name in json.loads(Path(names).read_text()):
        with Path(mountpoint, name).open("rb") as file:
            while file.read(_PIECE):
                pass


def whole(url: str, folder: str, layers: str) -> None:
    with ThreadPoolExecutor(_LAYERS_AT_ONCE) as pool:
        for done in [pool.submit(_layer, f"{url}/{number}.tar", folder) for number in range(int(layers))]:
            done.result()


def _layer(url: str, folder: str) -> None:
    with (
        urllib.request.urlopen(url, timeout=_TIMEOUT) as answer,
        subprocess.Popen(["tar", "-x", "-C", folder], stdin=subprocess.PIPE) as unpacking,
    ):
        assert unpacking.stdin is not None
        for piece in iter(lambda: answer.read(_PIECE), b""):
            unpacking.stdin.write(piece)
        unpacking.stdin.close()
        if unpacking.wait():
            raise OSError(f"{url}: tar ended with {unpacking.returncode}")


_WAYS: dict[str, Callable[[str, str, str], None]] = {"lazy": lazy, "whole": whole}


def main(way: str, *arguments: str) -> None:
    print("waiting", flush=True)
    sys.stdin.readline()
    begin = time.monotonic()
    _WAYS[way](*arguments)
    seconds = time.monotonic() - begin
    print(json.dumps({"seconds": seconds, "cpu": own_cpu_seconds()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
