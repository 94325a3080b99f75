"""File systems for fsspec: that of one source, and those of services, whose paths have all of the URL behind `://`."""

from __future__ import annotations

import errno
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from fsspec.core import get_compression
from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path

from stripefs.api import Entry, FileSystem, ReadFile, WriteFile
from stripefs.fsspec.files import wrapped

__all__ = [
    "GcsFileSystem",
    "HdfsFileSystem",
    "HttpFileSystem",
    "HttpsFileSystem",
    "LocalFileSystem",
    "S3FileSystem",
    "StripefsFileSystem",
]

_T = TypeVar("_T")

_OF_FSSPEC = ("use_listings_cache", "listings_expiry_time", "max_paths", "asynchronous", "loop", "batch_size")
"""Options that fsspec gives to any file system; nothing is cached here, and nothing asynchronous."""

_COPIED_AT_ONCE = 8 << 20

_COPY_INSTEAD = (errno.EXDEV, errno.EOPNOTSUPP)
"""Errors of a rename that cannot be done: between sources, of a directory of a bucket."""


class StripefsFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The source at `root`, a URL or a local directory; paths begin there.

    auto_mkdir: True if a file that is written makes the directories above it, as on object stores. options: those of
    `stripefs.connect`.
    """

    protocol = "stripefs"
    blocksize = _COPIED_AT_ONCE

    def __init__(self, root: str = "", auto_mkdir: bool = True, **options: Any) -> None:
        super().__init__()
        self.auto_mkdir = auto_mkdir
        self._options = {name: value for name, value in options.items() if name not in _OF_FSSPEC}
        self._connect(root)

    def _connect(self, root: str) -> None:
        if not root:
            raise ValueError('stripefs:// needs root="URL OF THE SOURCE", or take stripefs+hdfs://HOST:PORT/PATH')
        self._source = FileSystem(root, **self._options)

    def _at(self, path: str) -> tuple[FileSystem, str]:
        """The source of a path, and the path there."""
        return self._source, self._strip_protocol(path)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return super()._strip_protocol(path).lstrip("/")

    @property
    def fsid(self) -> str:
        return f"{self.protocol}:{getattr(self, '_source', '')}"

    # -- files ---------------------------------------------------------------------------------------------------

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        """As fsspec has it, with `compression`, and `encoding` and so on for text."""
        if "r" in mode or ("b" in mode and kwargs.get("compression") is None):
            return super().open(path, mode, **kwargs)
        compression = get_compression(path, kwargs.pop("compression", None))
        text: dict[str, str | None] = {
            name: kwargs.pop(name) for name in ("encoding", "errors", "newline") if name in kwargs
        }
        return wrapped(super().open(path, mode.strip("bt") + "b", **kwargs), mode, compression, text)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: object = None,
        **kwargs: object,
    ) -> ReadFile | WriteFile:
        """Arguments about buffers and caches mean nothing here."""
        source, place = self._at(path)
        if "r" in mode:
            return source.open(place, mode)
        return self._with_parents(path, lambda: source.open(place, mode, deferred=not autocommit))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: object) -> bytes:
        return _got(self._fetch([(path, start, end)])[0])

    def cat_ranges(
        self,
        paths: list[str],
        starts: int | list[int] | None,
        ends: int | list[int] | None,
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: object,
    ) -> list[bytes | OSError]:
        """All side by side, each file opened once. Ranges are not joined, so `max_gap` means nothing."""
        count = len(paths)
        begins = starts if isinstance(starts, list) else [starts] * count
        stops = ends if isinstance(ends, list) else [ends] * count
        if len(begins) != count or len(stops) != count:
            raise ValueError("there must be as many starts and ends as paths")
        found = self._fetch(list(zip(paths, begins, stops, strict=True)))
        return found if on_error == "return" else [_got(one) for one in found]

    def _fetch(self, requests: list[tuple[str, int | None, int | None]]) -> list[bytes | OSError]:
        by_source: dict[FileSystem, list[int]] = {}
        places = []
        for index, (path, _, _) in enumerate(requests):
            source, place = self._at(path)
            by_source.setdefault(source, []).append(index)
            places.append(place)
        answers: list[bytes | OSError] = [b""] * len(requests)
        for source, indexes in by_source.items():
            found = source.fetch([(places[index], *requests[index][1:]) for index in indexes])
            for index, one in zip(indexes, found, strict=True):
                answers[index] = one
        return answers

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: object) -> None:
        with self.open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value)

    def cp_file(self, path1: str, path2: str, **kwargs: object) -> None:
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
            return
        buffer = memoryview(bytearray(_COPIED_AT_ONCE))
        with self.open(path1, "rb") as source, self.open(path2, "wb") as target:
            while length := source.readinto(buffer):
                target.write(buffer[:length])

    # -- names ---------------------------------------------------------------------------------------------------

    def info(self, path: str, **kwargs: object) -> dict[str, Any]:
        source, place = self._at(path)
        return _info(self._strip_protocol(path), source.stat(place))

    def ls(self, path: str, detail: bool = True, **kwargs: object) -> list[Any]:
        source, place = self._at(path)
        path = self._strip_protocol(path)
        try:
            entries = source.scandir(place)
        except NotADirectoryError:
            found = [self.info(path)]
        else:
            above = f"{path.rstrip('/')}/" if path else ""
            found = [_info(above + entry.name, entry) for entry in entries]
        return found if detail else [one["name"] for one in found]

    def exists(self, path: str, **kwargs: object) -> bool:
        """Raises an OSError where that is unknown."""
        source, place = self._at(path)
        return source.exists(place)

    def created(self, path: str) -> datetime:
        """Time at which the version was published, which no store tells from its last change."""
        return self.modified(path)

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path)["mtime"], UTC)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: object) -> None:
        source, place = self._at(path)
        source.mkdir(place, parents=create_parents)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        source, place = self._at(path)
        source.mkdir(place, parents=True, exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        source, place = self._at(path)
        source.rmdir(place)

    def rm_file(self, path: str) -> None:
        """Remove a file, or a directory that is empty."""
        source, place = self._at(path)
        try:
            source.remove(place)
        except IsADirectoryError:
            source.rmdir(place)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        if not recursive or maxdepth is not None:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)
            return
        for one in self.expand_path(path):
            source, place = self._at(one)
            source.rmtree(place)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        """Move a file or directory in one step, in the place of a file that is there, or into a directory that is; onto
        itself it stays.

        Other moves (of lists, patterns, between services) copy and then remove; not in a transaction, which would
        remove at once what it may never publish.
        """
        if not isinstance(path1, list) and not isinstance(path2, list) and maxdepth is None:
            given, source, target = stringify_path(path2), self._strip_protocol(path1), self._strip_protocol(path2)
            if target != source and (given.endswith("/") or self.isdir(target)):
                target = f"{target.rstrip('/')}/{source.rpartition('/')[2]}"
            if self._moved(path1, target):
                return
        if self._intrans:
            raise OSError(errno.EXDEV, "cannot be moved in one step, so not in a transaction", path1)
        super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)

    def _moved(self, path: str, target: str) -> bool:
        """Move in one step, if that can be."""
        (source, place), (other, new_place) = self._at(path), self._at(target)
        if source is not other or not source.exists(place):
            return False
        try:
            self._with_parents(target, lambda: source.replace(place, new_place))
        except OSError as error:
            if error.errno not in _COPY_INSTEAD:
                raise
            return False
        return True

    def _with_parents(self, path: str, work: Callable[[], _T]) -> _T:
        """`work()`, again after the directories above `path` were made if these were missing."""
        try:
            return work()
        except FileNotFoundError:
            if not self.auto_mkdir:
                raise
        self.makedirs(self._parent(path), exist_ok=True)
        return work()


def _info(path: str, entry: Entry) -> dict[str, Any]:
    return {
        "name": path,
        "type": entry.type,
        "size": entry.size,
        "mtime": entry.mtime,
        "mode": entry.mode,
        "owner": entry.owner,
        "group": entry.group,
        "version": entry.version,
    }


def _got(one: bytes | OSError) -> bytes:
    if isinstance(one, OSError):
        raise one
    return one


class _ByUrl(StripefsFileSystem):
    """Paths begin with what stands between `://` and the next slash; sources are found by the pools above a file."""

    def _connect(self, root: str) -> None:
        if root:
            raise ValueError("root= goes with stripefs://; here paths have all of the URL")
        self._services: dict[str, FileSystem] = {}

    def _at(self, path: str) -> tuple[FileSystem, str]:
        authority, _, place = self._strip_protocol(path).partition("/")
        service = self._services.get(authority)
        if service is None:
            url = f"{self.protocol.partition('+')[2]}://{authority}/"
            service = self._services.setdefault(authority, FileSystem.of_service(url, **self._options)[0])
        return service, place

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return AbstractFileSystem._strip_protocol.__func__(cls, path)


class HdfsFileSystem(_ByUrl):
    """`stripefs+hdfs://NAMENODE:PORT/PATH`, or a nameservice, or none."""

    protocol = "stripefs+hdfs"


class LocalFileSystem(_ByUrl):
    """`stripefs+file:///PATH`."""

    protocol = "stripefs+file"
    root_marker = "/"


class S3FileSystem(_ByUrl):
    """`stripefs+s3://BUCKET/KEY`; with an endpoint of its own: `stripefs://` and root="s3://BUCKET?…"."""

    protocol = "stripefs+s3"


class GcsFileSystem(_ByUrl):
    """`stripefs+gs://BUCKET/KEY`."""

    protocol = "stripefs+gs"


class HttpFileSystem(_ByUrl):
    """`stripefs+http://HOST/PATH`, to read files by name."""

    protocol = "stripefs+http"


class HttpsFileSystem(_ByUrl):
    """`stripefs+https://HOST/PATH`, to read files by name."""

    protocol = "stripefs+https"
