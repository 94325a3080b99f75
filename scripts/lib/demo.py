"""The demonstration behind ./scripts/demo: one stream against the mount, the same file, the same eight hosts.

Prints what it does and what came out; leaves nothing behind, also when interrupted.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from stripefs.settings import StoreSettings
from stripefs.store.base import Store
from stripefs.store.url import open_store

MIB = 1 << 20
SIZE = 512 * MIB
HOSTS = 8
RATE = 40  # MB/s of each host: what a busy disk gives one of its readers
ROOT = Path(__file__).resolve().parent.parent.parent
STRIPEFS = str(Path(sys.executable).parent / "stripefs")


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stripefs-demo-")))
            url = stack.enter_context(real_cluster()) if "--hdfs" in arguments else simulated_hosts(folder)
            demonstrate(url, folder, stack)
    except KeyboardInterrupt:
        return 130
    except subprocess.CalledProcessError as error:
        print(f"demo: error: {error.cmd[0]} {error.cmd[1]} failed", file=sys.stderr)
        return 1
    return 0


def demonstrate(url: str, folder: Path, stack: ExitStack) -> None:
    store = open_store(StoreSettings(url=url))
    stack.callback(store.close)
    print(f"source      {url}")
    expected, one_stream = timed("one stream", lambda: one_after_another(store))

    mountpoint = folder / "mnt"
    mountpoint.mkdir()
    subprocess.run([STRIPEFS, "mount", url, str(mountpoint)], check=True)
    stack.callback(unmount, mountpoint)
    listing = ", ".join(f"{entry.name} ({entry.stat().st_size >> 20} MiB)" for entry in os.scandir(mountpoint))
    print(f"mounted     {mountpoint}: {listing}")
    found, mounted = timed("the mount", lambda: plain_file(mountpoint / "checkpoint.bin"))

    status = json.loads(subprocess.check_output([STRIPEFS, "status", "--json", str(mountpoint)]))
    print(f"speed-up    {one_stream / mounted:.1f} times, the same bytes: {'yes' if found == expected else 'NO'}")
    print(f"more        {STRIPEFS} status --json; docs/cli.md")
    if found != expected:
        raise SystemExit(f"demo: error: the mount answered other bytes; its status: {json.dumps(status)}")


def timed(what: str, read: object) -> tuple[str, float]:
    began = time.perf_counter()
    digest = str(read())  # type: ignore[operator]  # a plain callable
    seconds = time.perf_counter() - began
    print(f"{what:11} {SIZE / 1e6 / seconds:6.0f} MB/s ({seconds:.1f} s for {SIZE >> 20} MiB)")
    return digest, seconds


def one_after_another(store: Store) -> str:
    """What a client without read-ahead does: the next piece when the last has come."""
    digest = hashlib.sha256()
    handle = store.open(b"/checkpoint.bin")
    try:
        for offset in range(0, SIZE, 8 * MIB):
            digest.update(handle.read(offset, 8 * MIB))
    finally:
        handle.close()
    return digest.hexdigest()


def plain_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def simulated_hosts(folder: Path) -> str:
    source = folder / "source"
    source.mkdir()
    with (source / "checkpoint.bin").open("wb") as file:
        for piece in pieces():
            file.write(piece)
    print(f"hosts       {HOSTS} simulated ones of {RATE} MB/s each, 8 MiB blocks placed at random")
    return f"throttled+file://{source}?hosts={HOSTS}&rate={RATE}MB/s&block-size=8MiB&seed=2"


@contextmanager
def real_cluster() -> Iterator[str]:
    import hdfs_native

    command = str(ROOT / "scripts/hdfs-cluster")
    name = f"demo-{os.getpid()}"
    print(f"hosts       a NameNode and {HOSTS} DataNodes, each a process, {RATE} MB/s each; starting", flush=True)
    options = ["--datanodes", str(HOSTS), "--rate", str(RATE), "--name", name, "--json"]
    try:
        facts = json.loads(subprocess.check_output([command, "start", *options]))
        os.environ["HADOOP_USER_NAME"] = "root"
        client = hdfs_native.Client(facts["url"])
        with client.create("/checkpoint.bin") as file:
            for piece in pieces():
                file.write(piece)
        yield facts["url"]
    finally:
        subprocess.run([command, "stop", "--name", name], check=False)


def pieces() -> Iterator[bytes]:
    for _ in range(SIZE // (8 * MIB)):
        yield os.urandom(8 * MIB)


def unmount(mountpoint: Path) -> None:
    subprocess.run([STRIPEFS, "umount", str(mountpoint)], check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
