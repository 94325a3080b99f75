"""imagefs: how long a program takes to start from an image of which its machine has nothing yet.

The image is a small system with this machine's Python and a few large packages; the program imports some of these. Each
start has a cache and a daemon of its own, and reads the images over the same slow link; its time is from the first
command to the program's end. A pull reads one layer, a tar file packed by zstd, and unpacks it as it comes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import zstandard
from demo_files import RATE as HOST_RATE
from demo_tools import PROGRAMS, Failed, command, say

from bench.harness.cluster import Cluster
from bench.image.python_root import VERSION, add_packages, add_python
from imagefs.repository.images import Images, object_path
from imagefs.repository.store import StoreRepository
from stripefs.settings import StoreSettings
from stripefs.store.base import Buffer, Handle
from stripefs.store.url import open_store

__all__ = [
    "IMAGEFS",
    "MODULES",
    "TAG",
    "Place",
    "await_plan",
    "demonstrate",
    "on_cluster",
    "pull",
    "simulated",
    "slow",
]

RATE = 20  # MB/s: what is left to one of many machines that start at once
DELAY = 10  # ms: what an object store takes to answer
PACKAGES = ("numpy", "sympy", "mpmath", "duckdb", "matplotlib", "pip")
MODULES = ("numpy", "sympy")
PROGRAM = "import importlib, sys; sys.path.append(sys.argv[1]); list(map(importlib.import_module, sys.argv[2:]))"
IMAGEFS = PROGRAMS / "imagefs"
TAG = "demo"
LAYER = b"/layer.tar.zst"

_PREFIX = "/usr"
_SITE = f"{_PREFIX}/lib/{VERSION}/site-packages".lstrip("/")
_NEEDS = 3 << 30  # bytes: tree, image, layer, the layer unpacked, what some machines keep
_PIECE = 4 << 20
_PULLS_AT_ONCE = 3
_PLAN_WITHIN = 30.0


@dataclass(frozen=True, slots=True)
class Place:
    """Locations of images and layers: put below `here`, read below `there`, a URL whose parameters come last."""

    here: str
    there: str
    parameters: str = ""

    def put(self, name: str) -> str:
        return f"{self.here}/{name}"

    def link(self, name: str) -> str:
        return f"{self.there}/{name}{self.parameters}"


@dataclass(frozen=True, slots=True)
class Start:
    """Result of a start: its time, the bytes that came over the link until its end, and the plane of the tree."""

    seconds: float
    fetched: int
    plane: str = ""


def simulated(folder: Path) -> Place:
    """A folder behind a link that is simulated."""
    say("link", f"simulated: {RATE} MB/s, {DELAY} ms before each answer; the store is a local directory behind it")
    return slow(folder)


def slow(folder: Path) -> Place:
    """A folder, and the same behind the link."""
    there = f"throttled+delayed+file://{quote(str(folder))}"
    return Place(str(folder), there, f"?hosts=1&rate={RATE}MB/s&delay={DELAY}ms")


def on_cluster(hdfs: Cluster) -> Place:
    """A directory of a real HDFS."""
    say("link", f"the same {len(hdfs.datanodes)} DataNodes of {HOST_RATE} MB/s each hold the images")
    return Place(f"{hdfs.url}/demo", f"{hdfs.url}/demo")


def demonstrate(place: Place, folder: Path) -> None:
    """Start the program four times, each on a machine that has nothing. Raises Failed, CalledProcessError."""
    publish(place, folder)
    say("program", f"python, which imports {', '.join(MODULES)}")
    print(f"\n{'':44}{'seconds':>10}{'MB fetched':>12}")
    row("copy everything, then start (a pull)", pulled(place, folder / "pulled"))
    first = started(place, folder / "first")
    row("first start: what is touched is fetched", first)
    row("second: what the first touched comes ahead", started(place, folder / "second"))
    command(IMAGEFS, "optimize", f"{place.put('images')}#{TAG}", "--tag", "optimized", "--quiet")
    row("after imagefs optimize: in one stream", started(place, folder / "third", "optimized"))
    by = "the kernel's EROFS" if first.plane == "erofs" else "FUSE, as for every plain user"
    print(f"\nThe first start's trace was stored with the image; every machine was a new one. Trees shown by {by}.")
    say("more", f"{IMAGEFS} --help; docs/images.md")


def row(what: str, start: Start) -> None:
    print(f"{what:44}{start.seconds:10.1f}{start.fetched / 1e6:12.0f}", flush=True)


def publish(place: Place, folder: Path) -> None:
    """Have the image and the layer stored, unless another part did that. Raises Failed, CalledProcessError."""
    root = folder / "root"
    if root.exists():
        return
    if shutil.disk_usage(folder).free < _NEEDS:
        raise Failed(f"{folder.parent} has less than {_NEEDS / 1e9:.1f} GB free: set TMPDIR")
    for name in ("dev", "etc", "opt/job", "proc", "run", "sys", "tmp", "var/tmp"):
        (root / name).mkdir(parents=True)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    add_packages(root, add_python(root, _PREFIX, link), PACKAGES, link)
    sizes = [path.lstat().st_size for path in root.rglob("*") if not path.is_dir()]
    say("image", f"Python with {', '.join(PACKAGES)}: {sum(sizes) / 1e6:.0f} MB in {len(sizes)} files")
    with ThreadPoolExecutor(1) as beside:
        layer = beside.submit(pack, place, root)
        stored = build(place, root)
    say("stored", f"{stored / 1e6:.0f} MB as an image, by imagefs build; {layer.result() / 1e6:.0f} MB as a layer")


def link(source: str, target: str) -> None:
    """A hard link, or a copy where there can be none: files of the tree are only read."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def build(place: Place, root: Path) -> int:
    """Make the image; the bytes of its blocks."""
    options = ("--tag", TAG, "--quiet", "--json")
    facts = json.loads(command(IMAGEFS, "build", f"dir:{root}", place.put("images"), *options))
    return int(facts["built"]["stored_bytes"])


def pack(place: Place, root: Path) -> int:
    """Make the layer; its bytes."""
    layers = open_store(StoreSettings(url=place.put("layers")), make=True)
    packer = zstandard.ZstdCompressor(threads=-1)
    with closing(layers), subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as tar:
        assert tar.stdout is not None
        layers.put(LAYER, packer.read_to_iter(tar.stdout))
        if tar.wait():
            raise Failed(f"tar could not read {root}")
        return layers.stat(LAYER).length


def run(root: Path) -> None:
    """The program, with its modules from the tree at `root` and no others but the standard library's."""
    command(sys.executable, "-I", "-S", "-B", "-c", PROGRAM, root / _SITE, *MODULES)


def pulled(place: Place, root: Path) -> Start:
    """Read all of the layer, unpack it, and start."""
    began = time.perf_counter()
    size = pull(place, root)
    run(root)
    seconds = time.perf_counter() - began
    command("rm", "-r", root)  # thousands of files, which Python takes its time for
    return Start(seconds, size)


def pull(place: Place, root: Path) -> int:
    """Read all of the layer and unpack it to `root`; its bytes. Raises Failed."""
    root.mkdir(parents=True)
    with closing(open_store(StoreSettings(url=place.link("layers")))) as layers, closing(layers.open(LAYER)) as layer:
        unpack(pieces(layer), root)
        return layer.status.length


def pieces(layer: Handle) -> Iterator[Buffer]:
    """Everything in the file, in order, some of it read ahead."""
    size = layer.status.length
    pool = ThreadPoolExecutor(_PULLS_AT_ONCE)
    try:
        yield from pool.map(lambda at: layer.read(at, min(_PIECE, size - at)), range(0, size, _PIECE))
    finally:
        pool.shutdown(cancel_futures=True)


def unpack(data: Iterable[Buffer], root: Path) -> None:
    with subprocess.Popen(["tar", "-C", root, "-x"], stdin=subprocess.PIPE, process_group=0) as tar:
        assert tar.stdin is not None
        unpacker = zstandard.ZstdDecompressor().decompressobj()
        try:
            for piece in data:
                tar.stdin.write(unpacker.decompress(piece))
        except BaseException:
            tar.kill()  # it would complain of the end that is missing
            raise
    if tar.returncode:
        raise Failed(f"tar could not write {root}")


def started(place: Place, machine: Path, tag: str = TAG) -> Start:
    """Mount the image on a machine whose disk is the empty folder `machine`, start, and say when it was ready."""
    own = {"IMAGEFS_CACHE": str(machine / "cache"), "IMAGEFS_RUNTIME": str(machine / "run")}
    root = machine / "root"
    root.mkdir(parents=True)
    began = time.perf_counter()
    command(IMAGEFS, "mount", f"{place.link('images')}#{tag}", root, environment=own)
    run(root)
    seconds = time.perf_counter() - began
    status = json.loads(command(IMAGEFS, "status", "--json", environment=own))
    command(IMAGEFS, "ready", root, environment=own)
    await_plan(place, tag)
    command(IMAGEFS, "umount", root, environment=own)
    command(IMAGEFS, "daemon", "--stop", environment=own)
    blocks = sum(fetched["stored"] for fetched in status["blocks"]["fetched"].values())
    return Start(seconds, blocks + documents(place, tag), status["images"][0]["plane"])


def documents(place: Place, tag: str) -> int:
    """Bytes that every mount brings: the metadata of the image, and where its blocks are."""
    with closing(open_store(StoreSettings(url=place.put("images")))) as opened:
        images = Images(StoreRepository(opened))
        manifest = images.manifest(images.resolve(tag))
        found = [object_path("indexes", device.index) for device in manifest.devices]
        return sum(images.stat(path).length for path in (*found, object_path("metadata", manifest.metadata.object)))


def await_plan(place: Place, image: str) -> None:
    """A trace is made in the background, and a plan of it. image: TAG, or TAG/WORKLOAD. Raises Failed."""
    deadline = time.monotonic() + _PLAN_WITHIN
    while not json.loads(command(IMAGEFS, "trace", "show", "--json", f"{place.put('images')}#{image}"))["plans"]:
        if time.monotonic() > deadline:
            raise Failed(f"a recorded start left no plan within {_PLAN_WITHIN:g} s")
        time.sleep(0.1)
