"""stripefs: a checkpoint saved and loaded, as one stream and through the mount, on the same eight hosts."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from demo_files import BLOCK, HOSTS, RATE, STRIPEFS, one_after_another, plain_file
from demo_tools import Failed, command, say

from bench.harness import cluster
from bench.harness.data import MIB, DataFile, contents
from stripefs.settings import StoreSettings
from stripefs.store.base import Store
from stripefs.store.url import open_store

__all__ = ["demonstrate", "on_cluster", "simulated"]

SIZE = 128 * MIB
FILE = DataFile("checkpoint", SIZE, BLOCK)
_ONE, _SAVED = "one-stream.bin", "striped.bin"


def demonstrate(url: str, folder: Path) -> None:
    """Save and load both ways below `url`. Raises Failed when other bytes come back."""
    say("saving", f"{SIZE >> 20} MiB to {HOSTS} hosts of {RATE} MB/s each")
    mountpoint = folder / "mnt"
    mountpoint.mkdir()
    with closing(open_store(StoreSettings(url=url, transport="native"))) as store:
        saved = timed("one stream", lambda: put(store))
        command(STRIPEFS, "mount", "--rw", "--layout", "striped", url, mountpoint)
        mounted = timed("the mount", lambda: save(mountpoint / _SAVED))
        say("speed-up", f"{saved / mounted:.1f} times, until every byte is stored and the file is there for all")
        command(STRIPEFS, "umount", mountpoint)
        print(flush=True)
        say("loading", "the same files, by a process that has nothing of them yet")
        expected = hashlib.sha256()
        for piece in pieces():
            expected.update(piece)
        found: dict[str, str] = {}
        loaded = timed("one stream", lambda: found.update(one=one_after_another(store, _ONE, SIZE)))
    command(STRIPEFS, "mount", url, mountpoint)
    again = timed("the mount", lambda: found.update(mount=plain_file(mountpoint / _SAVED)))
    same = set(found.values()) == {expected.hexdigest()}
    say("speed-up", f"{loaded / again:.1f} times, the same bytes: {'yes' if same else 'NO'}")
    say("more", f"{STRIPEFS} mount --help; docs/semantics.md")
    command(STRIPEFS, "umount", mountpoint)
    if not same:
        raise Failed(f"what was loaded is not what was saved: {found}")


def timed(what: str, action: Callable[[], None]) -> float:
    began = time.perf_counter()
    action()
    seconds = time.perf_counter() - began
    say(what, f"{SIZE / 1e6 / seconds:6.0f} MB/s ({seconds:.1f} s for {SIZE >> 20} MiB)")
    return seconds


def pieces() -> Iterator[bytes]:
    return contents(FILE, 0, SIZE)


def put(store: Store) -> None:
    """Write as a client without parallel parts does: one file, one block after the other."""
    sink = store.create(b"/" + _ONE.encode(), length=SIZE)
    for piece in pieces():
        sink.write(piece)
    sink.close()


def save(path: Path) -> None:
    """Save as a training program does; returns when every byte is stored."""
    with path.open("wb") as file:
        for piece in pieces():
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def simulated(folder: Path) -> str:
    """The URL of an empty directory on hosts that are simulated."""
    saves = folder / "saves"
    saves.mkdir()
    return f"throttled+file://{quote(str(saves))}?hosts={HOSTS}&rate={RATE}MB/s&block-size={BLOCK}&seed=2"


def on_cluster(hdfs: cluster.Cluster) -> str:
    """The URL of an empty directory of a real HDFS."""
    from hdfs_native import Client

    Client(hdfs.url).mkdirs("/saves", 0o755, True)
    return f"{hdfs.url}/saves"
