"""Flipped bits and truncations in everything that stores and caches keep: no wrong byte, and nothing live collected.

Each step damages one file of a place, reads all that the place holds, collects garbage, and puts the file back. With
the damage a read answers the right bytes or an error of ours. Once the file is back every read answers the right bytes,
so garbage collection removed nothing that was needed.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Protocol

import trio

from imagefs.blocks.source import PackSource
from imagefs.build.content import scan
from imagefs.build.image import build
from imagefs.format.documents import Snapshot, key_digest
from imagefs.format.erofs import ErofsImage
from imagefs.format.erofs.read import files as files_in
from imagefs.format.trace import Touch, Trace
from imagefs.housekeeping.gc import collect
from imagefs.repository.snapshots import Snapshots
from imagefs.repository.traces import Traces
from stripefs.errors import StripefsError
from stripefs.format.manifest import Manifest, Segment
from stripefs.gc.collect import Collection
from stripefs.settings import StoreSettings
from stripefs.store.local import LocalStore
from stripefs.store.striped import StripedStore
from tests.soak.right import Context, Violation
from tests.support.caches import cached, write
from tests.support.images.devices import running, settled
from tests.support.images.stores import build_tree, files, images_in, write_tree
from tests.support.leftovers import DAY, Place, version
from tests.support.stores import content
from tests.support.striped_files import write_marked

SHARES = {"striped": 200, "cache": 100, "image": 120, "blocks": 80}
"""Damages of each place in a full run."""


def check(context: Context) -> dict[str, int | float]:
    """Counts damages, reads that were right in spite of them, and reads that were refused."""
    counters: Counter[str] = Counter()
    for name, share in SHARES.items():
        folder = context.folder / name
        folder.mkdir()
        with contextlib.closing(_PLACES[name](folder)) as place:
            _damage(place, context.random(name), context.count(share), counters)
        context.say(f"{name}: {dict(counters)}")
    return dict(counters)


class _Place(Protocol):
    """A store or cache with files in it. A read is named, so that a violation says which one it was.

    always_right: damage must not even fail a read, as there is another copy to read from.
    """

    always_right: bool

    def files(self) -> dict[str, Sequence[Path]]:
        """Files that may be damaged, by kind."""

    def reads(self) -> Iterator[tuple[str, Callable[[], bytes], bytes]]:
        """The name of each read, the read, and its right answer."""

    def collect(self) -> None:
        """Remove what nobody needs, as far as that is known. May raise a StripefsError."""

    def close(self) -> None:
        """Let go of what is open."""


class _Copies:
    """Copies of what a store has: none of them is garbage, and nothing stays open."""

    always_right = True

    def collect(self) -> None: ...

    def close(self) -> None: ...


def _damage(place: _Place, random: Random, count: int, counters: Counter[str]) -> None:
    _read(place, "before any damage")
    for step in range(count):
        kinds = {kind: paths for kind, paths in place.files().items() if paths}
        kind = random.choice(sorted(kinds))
        path = random.choice(kinds[kind])
        data, times = path.read_bytes(), path.stat()
        what, damaged = _damaged(data, random)
        told = f"step {step}, {what} of {kind} {path.name}"
        _put(path, damaged, times)
        right, refused = _read(place, told, may_fail=not place.always_right)
        with contextlib.suppress(StripefsError):
            place.collect()
        _put(path, data, times)
        _read(place, f"after {told} was put right")
        counters.update({"damages": 1, f"damaged_{kind}": 1, "right_reads": right, "refused_reads": refused})


def _damaged(data: bytes, random: Random) -> tuple[str, bytes]:
    if not data or random.random() < 0.3:
        length = random.choice([0, 1, 11, random.randrange(len(data) + 1)])
        return f"the first {length} of {len(data)} bytes", data[:length]
    at, bit = random.choice([random.randrange(len(data)), random.randrange(min(len(data), 128))]), random.randrange(8)
    return f"bit {bit} of byte {at}", data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def _put(path: Path, data: bytes, times: os.stat_result) -> None:
    """Write in place, as damage comes: the same inode, attributes and times. A file that was removed is a violation."""
    try:
        with path.open("r+b") as file:
            file.truncate(0)
            file.write(data)
    except FileNotFoundError:
        raise Violation(f"{path} was removed while it was needed") from None
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _read(place: _Place, when: str, *, may_fail: bool = False) -> tuple[int, int]:
    right = refused = 0
    for name, read, wanted in place.reads():
        try:
            answer = read()
        except StripefsError as error:
            if not may_fail:
                raise Violation(f"{when}: {name} fails: {error}") from error
            refused += 1
        except Exception as error:
            raise Violation(f"{when}: {name} raises {error!r}") from error
        else:
            if answer != wanted:
                raise Violation(f"{when}: {name} answers wrong bytes")
            right += 1
    return right, refused


class _Striped:
    """Striped files in a local directory, one with its list of parts outside, and a living writer's parts."""

    always_right = False

    def __init__(self, folder: Path) -> None:
        self._place = Place(folder)
        self._content = {f"d/f{number}": content(50_000 + number, number) for number in range(3)}
        for number, (path, data) in enumerate(self._content.items()):
            self._place.striped(path, version(number), data, 2 * DAY)
        self._content["d/many"] = data = content(16_000, 7)
        segments = tuple(
            Segment(10, self._place.parts(f"{1000 + at:016x}", data[at : at + 10], 1, 2 * DAY))
            for at in range(0, len(data), 10)
        )
        manifest = Manifest(version(7), 0, 4096, self._place.view.pool, segments)
        self._list, listed = manifest.parts_list() or (b"", b"")
        self._place.file(self._list.decode().strip("/"), listed, 2 * DAY)
        write_marked(self._place.store, b"/d/many", manifest.to_bytes())
        self._place.age("d/many", 2 * DAY)
        self._unfinished = self._place.parts(version(9), content(20_000, 9), 2, 2 * DAY)
        self._lock = folder / self._place.lock("d", "new", [version(9)], 0).decode().strip("/")

    def files(self) -> dict[str, Sequence[Path]]:
        root = self._place.root
        return {
            "manifest": [root / path for path in self._content],
            "list": [root / self._list.decode().strip("/")],
            "part": [path for number in range(3) for path in sorted((root / ".stripefs" / version(number)).iterdir())],
            "lock": [self._lock],
        }

    def reads(self) -> Iterator[tuple[str, Callable[[], bytes], bytes]]:
        os.utime(self._lock)  # its writer lives
        with contextlib.closing(StripedStore(LocalStore(os.fsencode(self._place.root)))) as view:
            for path, data in self._content.items():
                yield path, lambda path=path: bytes(view.get(f"/{path}".encode())), data  # type: ignore[misc]
            lengths = {entry.name: entry.length for batch in view.scandir(b"/d") for entry in batch}
            if lengths.keys() != {os.path.basename(path).encode() for path in self._content}:
                raise Violation(f"a listing shows {sorted(lengths)}")

    def collect(self) -> None:
        os.utime(self._lock)
        store = LocalStore(os.fsencode(self._place.root))
        with contextlib.closing(StripedStore(store)) as view:
            Collection(store, view, force=True).run()
        for part in self._unfinished:
            if not (self._place.root / part.path().decode().strip("/")).exists():
                raise Violation("a part that a living writer made was removed")

    def close(self) -> None:
        self._place.close()


class _Cache(_Copies):
    """The cache of files in front of a directory, with all of them in it."""

    def __init__(self, folder: Path) -> None:
        self._source, self._cache = folder / "source", folder / "cache"
        self._source.mkdir()
        self._cache.mkdir()
        self._content = {f"f{number}": write(self._source / f"f{number}", 3_000_000, number) for number in range(2)}

    def files(self) -> dict[str, Sequence[Path]]:
        return {"segment": [path for path in files(self._cache) if path.stat().st_size]}

    def reads(self) -> Iterator[tuple[str, Callable[[], bytes], bytes]]:
        with cached(self._source, self._cache) as one:
            for name, data in self._content.items():
                yield name, lambda name=name: one.read(b"/" + name.encode()), data  # type: ignore[misc]


class _Image:
    """Two images of a store, a tag of each, a trace, and a dependency snapshot, whose image has no tag."""

    always_right = False

    def __init__(self, folder: Path) -> None:
        self._store = folder / "store"
        self._images = images_in(self._store)
        self._content: dict[str, bytes] = {}
        for tag in ("one", "two"):
            tree = write_tree(folder / tag, **{"a": 1, tag: len(tag)})
            build_tree(tree, self._images, tag)
            self._content |= {f"{tag}/{path.name}": path.read_bytes() for path in tree.iterdir()}
        self._base = self._images.resolve("one")
        key = {"targets": ["/opt/deps"]}
        self._snapshot = key_digest(key)
        tree = write_tree(folder / "deps", d=4)
        self._installed = build(*scan(str(tree)), self._images, source=self._snapshot).digest
        Snapshots(self._images).put(Snapshot(key, self._installed, "host", ("/opt/deps",), 1.0, 1.0))
        self._trace = Trace(self._base, "default", "n", 1.0, 1.0, "ready", True, "", [Touch(0, b"a", 0, 10, bytes(16))])
        self._name = Traces(self._images.repository).put(self._trace)

    def files(self) -> dict[str, Sequence[Path]]:
        return {kind.name: files(kind) for kind in self._store.iterdir()}

    def reads(self) -> Iterator[tuple[str, Callable[[], bytes], bytes]]:
        for path, data in self._content.items():
            yield path, lambda path=path: read_image(self._store, *path.split("/")), data  # type: ignore[misc]
        traces = Traces(self._images.repository)
        yield (
            "the trace",
            lambda: traces.load(self._base, "default", self._name).to_json(),
            self._trace.to_json(),
        )
        image = functools.partial(Snapshots(self._images).checked_image, self._snapshot)
        yield "the snapshot", lambda: image().encode(), self._installed.encode()

    def collect(self) -> None:
        collect(self._images, older_than=0, untagged=True)

    def close(self) -> None:
        self._images.repository.close()


class _Blocks(_Copies):
    """The blocks of an image on local disk, all of them, in front of the store."""

    def __init__(self, folder: Path) -> None:
        self._store, self._folder = folder / "store", folder / "blocks"
        images = images_in(self._store)
        tree = write_tree(folder / "tree", a=1, b=2)
        build_tree(tree, images, "tag")
        images.repository.close()
        self._content = {path.name: path.read_bytes() for path in tree.iterdir()}

    def files(self) -> dict[str, Sequence[Path]]:
        return {
            f"block_{path.suffix.strip('.') or path.name}": [path]
            for path in sorted(self._folder.iterdir())
            if path.is_file() and path.stat().st_size
        }

    def reads(self) -> Iterator[tuple[str, Callable[[], bytes], bytes]]:
        for name, data in self._content.items():
            yield name, lambda name=name: read_image(self._store, "tag", name, self._folder), data  # type: ignore[misc]


def read_image(store: Path, tag: str, name: str, folder: Path | None = None) -> bytes:
    """A file of an image, read as a host does that has nothing, or has `folder` for its blocks."""
    source = PackSource(StoreSettings(url=str(store)))
    images = source.images()
    manifest = images.manifest(images.resolve(tag))
    image = ErofsImage(images.metadata(manifest.metadata))
    [inode] = [inode for path, inode in files_in(image) if path == name.encode()]
    if image.chunk_table(inode) is None:
        return image.content(inode)

    async def read() -> bytes | StripefsError:
        parts = []
        async with running(folder or store.parent / f"blocks-{os.urandom(4).hex()}", io_timeout=1.0) as blocks:
            for number, offset, length in image.extents(inode, 0, inode.size):
                digest = manifest.devices[number - 1].index
                try:
                    device = await blocks.open(digest, images.index(digest), source)
                    parts.append(bytes(await device.read(offset, length)))
                except StripefsError as error:
                    return error
                await settled(device, blocks)
                device.close()
        return b"".join(parts)

    answer = trio.run(read)
    if isinstance(answer, StripefsError):
        raise answer
    return answer


_PLACES: dict[str, type[_Striped | _Cache | _Image | _Blocks]] = {
    "striped": _Striped,
    "cache": _Cache,
    "image": _Image,
    "blocks": _Blocks,
}
