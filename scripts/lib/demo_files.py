"""stripefs: one stream against the mount, the same file, the same eight hosts."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from demo_tools import PROGRAMS, Failed, command, say

from bench.harness import cluster
from bench.harness.data import DataFile, contents
from stripefs.settings import StoreSettings
from stripefs.store.base import Store
from stripefs.store.url import open_store

__all__ = ["RATE", "demonstrate", "on_cluster", "real_cluster", "simulated"]

MIB = 1 << 20
SIZE = 256 * MIB
BLOCK = 8 * MIB
FILE = DataFile("checkpoint.bin", SIZE, BLOCK)
HOSTS = 8
RATE = 40  # MB/s of each host: what a busy disk gives one of its readers
STRIPEFS = PROGRAMS / "stripefs"


def demonstrate(url: str, folder: Path) -> None:
    """Read the file at `url` both ways. Raises Failed when the mount answers other bytes."""
    say("source", url)
    # The ordinary client of HDFS; for simulated hosts the transport says nothing.
    with closing(open_store(StoreSettings(url=url, transport="native"))) as store:
        expected, one_stream = timed("one stream", lambda: one_after_another(store))
    mountpoint = folder / "mnt"
    mountpoint.mkdir()
    command(STRIPEFS, "mount", url, mountpoint)
    listing = ", ".join(f"{entry.name} ({entry.stat().st_size >> 20} MiB)" for entry in os.scandir(mountpoint))
    say("mounted", f"{mountpoint}: {listing}")
    found, mounted = timed("the mount", lambda: plain_file(mountpoint / FILE.name))
    status = json.loads(command(STRIPEFS, "status", "--json", mountpoint))
    say("speed-up", f"{one_stream / mounted:.1f} times, the same bytes: {'yes' if found == expected else 'NO'}")
    say("more", f"{STRIPEFS} status --json; docs/json.md")
    command(STRIPEFS, "umount", mountpoint)
    if found != expected:
        raise Failed(f"the mount answered other bytes; its status: {json.dumps(status)}")


def timed(what: str, read: Callable[[], str]) -> tuple[str, float]:
    began = time.perf_counter()
    digest = read()
    seconds = time.perf_counter() - began
    say(what, f"{SIZE / 1e6 / seconds:6.0f} MB/s ({seconds:.1f} s for {SIZE >> 20} MiB)")
    return digest, seconds


def one_after_another(store: Store, name: str = FILE.name, size: int = SIZE) -> str:
    """Read as a client without read-ahead does: the next piece when the last has come."""
    digest = hashlib.sha256()
    with closing(store.open(b"/" + name.encode())) as handle:
        for offset in range(0, size, BLOCK):
            digest.update(handle.read(offset, BLOCK))
    return digest.hexdigest()


def plain_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def simulated(folder: Path) -> str:
    """The URL of the file on hosts that are simulated."""
    source = folder / "source"
    source.mkdir()
    with (source / FILE.name).open("wb") as file:
        file.writelines(contents(FILE, 0, SIZE))
    say("hosts", f"{HOSTS} simulated ones of {RATE} MB/s each, {BLOCK >> 20} MiB blocks placed at random")
    return f"throttled+file://{quote(str(source))}?hosts={HOSTS}&rate={RATE}MB/s&block-size={BLOCK}&seed=2"


@contextmanager
def real_cluster() -> Iterator[cluster.Cluster]:
    """A real HDFS, which is removed in the end."""
    say("hosts", f"a NameNode and {HOSTS} DataNodes, each a process with a network of its own; starting")
    with cluster.running(f"demo-{os.getpid()}", lambda line: say("hosts", line)) as hdfs:
        yield hdfs


def on_cluster(hdfs: cluster.Cluster) -> str:
    """The URL of the file there, its DataNodes as slow as simulated ones."""
    hdfs.write([FILE], lambda line: say("hosts", line))
    url = f"{hdfs.url}{FILE.path.rpartition('/')[0]}"
    say("hosts", "two reads of the file, so that no figure is that of a fresh JVM")
    for transport in ("native", "webhdfs"):
        with closing(open_store(StoreSettings(url=url, transport=transport))) as store:
            one_after_another(store)
    hdfs.set_rate(RATE * 1e6)
    say("hosts", f"{RATE} MB/s each from here on, {BLOCK >> 20} MiB blocks placed at random by the NameNode")
    return url
