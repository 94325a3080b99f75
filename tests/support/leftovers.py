"""A local store with striped files in it, and what crashes left: made by hand, byte by byte, without a writer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from stripefs.format import reserved_names
from stripefs.format.lock_and_record import LockDocument, Record, RecordPart, RecordSegment
from stripefs.format.manifest import Manifest, Part, Segment
from stripefs.store.base import Buffer, Status, Store
from stripefs.store.local import LocalStore
from stripefs.store.striped import StripedStore
from stripefs.store.wrapper import Parser, WrappedStore
from tests.support.striped_files import write_marked
from tests.support.striping import stripe

__all__ = ["DAY", "Hooked", "Place", "age", "version"]

DAY = 86_400.0
UNIT = 4096


def version(number: int) -> str:
    return f"{number:016x}"


def age(top: Path, seconds: float) -> None:
    """Let what is there, and all below it, have been changed so long ago."""
    then = time.time() - seconds
    for each in sorted([top, *top.rglob("*")], reverse=True):
        os.utime(each, (then, then))


class Hooked(WrappedStore):
    """Calls `before(call, path)`, which may change the store or raise, ahead of the calls that gc makes."""

    NAME = "hooked"
    PARAMETERS: ClassVar[dict[str, Parser]] = {}

    def __init__(self, inner: Store, before: Callable[[str, bytes], None]) -> None:
        super().__init__(inner)
        self.before = before

    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        self.before("scandir", path)
        return super().scandir(path, after)

    def stat(self, path: bytes) -> Status:
        self.before("stat", path)
        return super().stat(path)

    def put(self, path: bytes, data: Iterable[Buffer], *, replace: bool = False, parents: bool = True) -> Status | None:
        self.before("put", path)
        return super().put(path, data, replace=replace, parents=parents)

    def remove(self, path: bytes) -> None:
        self.before("remove", path)
        super().remove(path)


class Place:
    """The store at `root`; paths are text, relative to it. A new file is `seconds` old where that is given."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = LocalStore(bytes(root), make=True)
        self.view = StripedStore(self.store)

    def close(self) -> None:
        self.view.close()

    def file(self, path: str, data: bytes = b"content", seconds: float = 0) -> bytes:
        self.store.put(b"/" + path.encode(), [data], replace=True)
        self.age(path, seconds)
        return b"/" + path.encode()

    def age(self, path: str, seconds: float) -> None:
        """Let the entry, and all below it, have been changed so long ago."""
        age(self.root / path, seconds)

    def hidden(self, folder: str, name: str, what: str, seconds: float, data: bytes = b"part") -> bytes:
        """Something hidden beside folder/name, as `VERSION-0`, `VERSION-draft`…"""
        stem = reserved_names.stem(name.encode()).decode()
        return self.file(f"{folder}/.{stem}.stripefs-{what}", data, seconds)

    def lock(self, folder: str, name: str, versions: Sequence[str], seconds: float) -> bytes:
        document = LockDocument("someone", f"/{folder}/{name}".encode(), tuple(versions), "host:1", "")
        return self.hidden(folder, name, "lock", seconds, document.to_bytes())

    def parts(self, version: str, data: bytes, width: int, seconds: float) -> tuple[Part, ...]:
        """A segment's parts, in the pool."""
        manifest, objects = stripe(data, [(len(data), width)], UNIT, version)
        for path, column in objects.items():
            self.file(path.decode().strip("/"), column)
        self.age(f".stripefs/{version}", seconds)
        return manifest.parts

    def striped(self, path: str, version: str, data: bytes = b"x" * 3 * UNIT, seconds: float = 0) -> Manifest:
        """A published file."""
        parts = self.parts(version, data, 3, seconds)
        manifest = Manifest(version, 0, UNIT, self.view.pool, (Segment(len(data), parts),))
        write_marked(self.store, b"/" + path.encode(), manifest.to_bytes())
        self.age(path, seconds)
        return manifest

    def record(self, folder: str, name: str, record: Record, seconds: float) -> bytes:
        return self.hidden(folder, name, f"{record.version}-record", seconds, record.to_bytes())

    def concat_record(self, folder: str, name: str, version: str, lengths: Sequence[int]) -> Record:
        stem = reserved_names.stem(name.encode()).decode()
        segments = tuple(
            RecordSegment(length, (RecordPart(f"/{folder}/.{stem}.stripefs-{version}-{number}".encode(), length),))
            for number, length in enumerate(lengths)
        )
        return Record(f"/{folder}/{name}".encode(), version, "concat", 0, segments, mode=0o640)

    def striped_record(self, folder: str, name: str, version: str, segments: Sequence[Segment]) -> Record:
        return Record(
            f"/{folder}/{name}".encode(),
            version,
            "striped",
            UNIT,
            tuple(
                RecordSegment(
                    each.length, tuple(RecordPart(part.path(), part.length, part.digest.hex()) for part in each.parts)
                )
                for each in segments
            ),
        )

    def everything(self) -> set[str]:
        """All files there are, hidden ones too."""
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()}
