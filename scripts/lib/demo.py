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

from bench import cluster
from bench.data import DataFile, contents
from stripefs.errors import StripefsError
from stripefs.settings import StoreSettings
from stripefs.store.base import Store
from stripefs.store.url import open_store

MIB = 1 << 20
SIZE = 512 * MIB
BLOCK = 8 * MIB
FILE = DataFile("checkpoint.bin", SIZE, BLOCK)
HOSTS = 8
RATE = 40  # MB/s of each host: what a busy disk gives one of its readers
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
    except (cluster.BenchError, StripefsError) as error:
        print(f"demo: error: {error}", file=sys.stderr)
        return 1
    return 0


def demonstrate(url: str, folder: Path, stack: ExitStack) -> None:
    os.environ["HADOOP_USER_NAME"] = "root"
    # The ordinary client of HDFS; for simulated hosts the transport says nothing.
    store = open_store(StoreSettings(url=url, transport="native"))
    stack.callback(store.close)
    print(f"source      {url}")
    expected, one_stream = timed("one stream", lambda: one_after_another(store))

    mountpoint = folder / "mnt"
    mountpoint.mkdir()
    subprocess.run([STRIPEFS, "mount", url, str(mountpoint)], check=True)
    stack.callback(unmount, mountpoint)
    listing = ", ".join(f"{entry.name} ({entry.stat().st_size >> 20} MiB)" for entry in os.scandir(mountpoint))
    print(f"mounted     {mountpoint}: {listing}")
    found, mounted = timed("the mount", lambda: plain_file(mountpoint / FILE.name))

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
    handle = store.open(b"/" + FILE.name.encode())
    try:
        for offset in range(0, SIZE, BLOCK):
            digest.update(handle.read(offset, BLOCK))
    finally:
        handle.close()
    return digest.hexdigest()


def plain_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def simulated_hosts(folder: Path) -> str:
    source = folder / "source"
    source.mkdir()
    with (source / FILE.name).open("wb") as file:
        file.writelines(contents(FILE, 0, SIZE))
    say(f"{HOSTS} simulated ones of {RATE} MB/s each, {BLOCK >> 20} MiB blocks placed at random")
    return f"throttled+file://{source}?hosts={HOSTS}&rate={RATE}MB/s&block-size={BLOCK}&seed=2"


@contextmanager
def real_cluster() -> Iterator[str]:
    say(f"a NameNode and {HOSTS} DataNodes, each a process with a network of its own; starting")
    with cluster.running(f"demo-{os.getpid()}", say) as hdfs:
        hdfs.write([FILE], say)
        url = f"{hdfs.url}{FILE.path.rpartition('/')[0]}"
        say("two reads of the file, so that no figure is that of a fresh JVM")
        for transport in ("native", "webhdfs"):
            store = open_store(StoreSettings(url=url, transport=transport))
            one_after_another(store)
            store.close()
        hdfs.set_rate(RATE * 1e6)
        say(f"{RATE} MB/s each from here on, {BLOCK >> 20} MiB blocks placed at random by the NameNode")
        yield url


def say(line: str) -> None:
    print(f"hosts       {line}", flush=True)


def unmount(mountpoint: Path) -> None:
    subprocess.run([STRIPEFS, "umount", str(mountpoint)], check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
