"""The files that hold events: local ones, those below a folder, and those of any store that stripefs reaches.

Files end in `.jsonl`, `.ndjson` or `.json`, with `.gz` or `.zst` behind it when they are compressed; one that is named
itself may have any name. `read_files` opens them one after another; a file that cannot be read, or ends in the midst of
its compressed data, gives what could be read and is reported to `damaged`, so that one bad file hides no other.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import io
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast
from urllib.parse import quote

from stripefs.errors import ConfigError, NotFound, StoreError, StripefsError

__all__ = ["HUGE", "PIECE", "File", "component", "find_files", "find_run", "open_regular", "read_files"]

PIECE = 8 << 20
"""Bytes that are read at a time."""

HUGE = 1 << 20
"""A longer line is no event."""

_ENDINGS = tuple(f".{name}{packed}" for name in ("jsonl", "ndjson", "json") for packed in ("", ".gz", ".zst"))
_LONGEST = 100
_AT_ONCE = 16  # files that are opened, and those of a store fetched, at the same time


class File(NamedTuple):
    """A file: its name for messages, and what opens it."""

    name: str
    open: Callable[[], BinaryIO]


@contextlib.contextmanager
def _store_errors() -> Iterator[None]:
    """Raises the errors of stores themselves, which commands tell in one line, in place of Python's."""
    try:
        yield
    except OSError as error:
        raise (error.__cause__ if isinstance(error.__cause__, StripefsError) else StoreError(str(error))) from error


def find_files(places: Sequence[str]) -> list[File]:
    """The files at these paths and URLs, in the order of their names below each.

    Raises NotFound for a place that is not there, ConfigError for one without events, and what the store raises.
    """
    found: list[File] = []
    for place in places:
        files = _remote(place) if "://" in place else _local(Path(place))
        if not files:
            raise ConfigError(f"{place} holds no events", hint=f"files of events end in {', '.join(_ENDINGS[:2])}")
        found += files
    return found


def component(name: str) -> str:
    """A name that every store takes, and that no other name becomes."""
    text = quote(name, safe="", errors="replace")
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - 20]}~{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:16]}"
    return text.replace(".", "%2E", 1) if text.startswith(".") else text or "_"


@_store_errors()
def find_run(folder: str, run: str) -> list[str]:
    """The directories of a run, or of JOB/RUN, in a collector folder, and that of events without a run.

    Where there are none the folder itself, whose events then tell. Raises NotFound and what the store raises.
    """
    exists: Callable[[str], bool] = lambda path: os.path.isdir(os.path.join(folder, path))  # noqa: E731
    if "://" in folder:
        from stripefs.api.filesystem import FileSystem

        store = FileSystem(folder)
        jobs, exists = store.listdir(), store.isdir
    elif os.path.isdir(folder):
        jobs = os.listdir(folder)
    else:
        raise NotFound(f"{folder} is no directory", hint="a run is looked for in the collector folder, --events")
    job, _, name = run.rpartition("/")
    wanted = [component(job)] if job else sorted(jobs)
    found = [path for one in wanted if exists(path := f"{one}/{component(name)}")]
    nameless = ["_/_"] if found and exists("_/_") else []
    return [f"{folder.rstrip('/')}/{path}" for path in found + nameless] or [folder]


def read_files(files: Iterable[File], damaged: Callable[[str, str], None]) -> Iterator[tuple[str, Iterator[bytes]]]:
    """The name of each file and its content in pieces, decompressed. damaged(name, reason) is called once for a bad
    file."""
    rest = iter(files)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        while some := list(islice(rest, _AT_ONCE)):
            for file, raw in zip(some, pool.map(_opened, some), strict=True):
                yield file.name, _pieces(file.name, raw, damaged)


def _opened(file: File) -> BinaryIO | OSError:
    try:
        return file.open()
    except OSError as error:
        return error


def _pieces(name: str, raw: BinaryIO | OSError, damaged: Callable[[str, str], None]) -> Iterator[bytes]:
    damages: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error)
    try:
        if isinstance(raw, OSError):
            raise raw
        with raw:
            stream: BinaryIO = raw
            if name.endswith(".gz"):
                stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw))
            elif name.endswith(".zst"):
                import zstandard  # which the collector works without

                damages += (zstandard.ZstdError,)
                stream = cast(BinaryIO, zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True))
            while piece := stream.read(PIECE):
                yield piece
    except damages as error:
        damaged(name, str(error) or type(error).__name__)


def _local(place: Path) -> list[File]:
    if not place.exists():
        raise NotFound(f"{place} does not exist")
    if not place.is_dir():
        return [File(str(place), lambda: open(place, "rb", buffering=0))]
    refused: list[OSError] = []
    walked = os.walk(place, onerror=refused.append)
    names = sorted(Path(folder, name) for folder, _, names in walked for name in names if name.endswith(_ENDINGS))
    files = [File(str(name), partial(io.FileIO, name, "rb", opener=open_regular)) for name in names]
    return files + [File(str(error.filename), partial(_raised, error)) for error in refused]


def _raised(error: OSError) -> BinaryIO:
    raise error


def open_regular(path: str, flags: int) -> int:
    """Opens files that a walk found. A pipe of such a name would never answer."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no regular file", path)
    return descriptor


@_store_errors()
def _remote(url: str) -> list[File]:
    from stripefs.api.filesystem import FileSystem

    store, path = FileSystem.of_service(url)
    if not store.exists(path):
        raise NotFound(f"{url} does not exist")
    names: list[str] = [os.fsdecode(path)]
    if store.isdir(path):
        walked = store.walk(path)
        names = sorted(f"{folder}/{name}" for folder, _, all_ in walked for name in all_ if name.endswith(_ENDINGS))
    return [File(name, lambda name=name: io.BytesIO(store.read_bytes(name))) for name in names]  # type: ignore[misc]
