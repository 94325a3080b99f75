"""Object stores through pyarrow: `s3://` (and what speaks its protocol) and `gs://`.

A path's identity is its length and modification time; pyarrow tells no ETag or file id. A handle does not pin its
version: pyarrow reads by path, and where an object became shorter it has been seen to answer bytes that were never in
any version. So the identity is asked for after every read, and bytes count only when it is still that of the open.
Object stores date objects by the second: a new object of the same length within the second of the old one passes for
it.

Directories of object stores are prefixes of keys. Where a key is both an object and a prefix, the object is shown.
Keys with empty, `.` or `..` components, or that are not UTF-8, cannot be paths and are not shown.

A new object is sent in parts and appears when the last has been acknowledged. pyarrow cannot let go of an upload
without completing it, so one that is given up appears for a moment before it is removed: callers give hidden names.
A rename is a copy, made by the service, and a removal. A reader of the new name sees the old object or the new
one, never a part; for that moment the object has both names. Directories cannot be renamed, and of two who create or
rename onto one name without replacing both may be answered that they did. Files in such a store are not locked.

Credentials come from the environment and the provider's own files, never from the URL.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Unpack

from stripefs.errors import (
    Busy,
    ConfigError,
    Exists,
    IsADirectory,
    NotADirectory,
    NotEmpty,
    NotFound,
    PermissionDenied,
    ServiceDown,
    StaleVersion,
    StoreError,
    Unsupported,
)
from stripefs.settings import StoreSettings
from stripefs.store.base import (
    Block,
    Buffer,
    Capabilities,
    Creation,
    Handle,
    Identity,
    Kind,
    Sink,
    Status,
    Store,
    Watch,
)
from stripefs.store.common import STORE_ERRORS, InUse, blocks_by_size, check_opened, check_range, exact, in_order

__all__ = ["ArrowHandle", "ArrowSink", "ArrowStore", "errors", "open_bucket"]

try:
    import pyarrow
    from pyarrow import fs as arrow_fs
except ModuleNotFoundError as error:
    raise ConfigError("this store is reached through pyarrow", hint="pip install 'bootseer[arrow]'") from error

_BATCH = 1000
_LARGEST_COPY = 5 << 30  # bytes of an object that S3 copies in one request (CopyObject); Google has no such limit

_BY_MESSAGE: tuple[tuple[type[StoreError], tuple[str, ...]], ...] = (
    (PermissionDenied, ("ACCESS_DENIED", "INVALID_ACCESS_KEY", "SIGNATURE_DOES", "PERMISSION_DENIED", "UNAUTHENTICATED",
                        "HTTP response code 401", "HTTP response code 403")),
    (NotFound, ("NO_SUCH_BUCKET", "NO_SUCH_KEY", "RESOURCE_NOT_FOUND", "HTTP response code 404")),
    (ServiceDown, ("NETWORK_CONNECTION", "SLOW_DOWN", "THROTTLING", "UNAVAILABLE", "INTERNAL_FAILURE",
                   "REQUEST_TIMEOUT", "curlCode", "DEADLINE_EXCEEDED")),
)  # fmt: skip
"""Errors by the messages of the AWS and Google clients; pyarrow passes no codes on."""


def open_bucket(
    kind: str,
    bucket: str,
    prefix: bytes,
    settings: StoreSettings,
    *,
    make: bool = False,
    endpoint_override: str = "",
    region: str = "",
    scheme: str = "https",
    anonymous: bool = False,
) -> Store:
    """The keys below `prefix` of `bucket` as a store. kind is s3 or gs; the keywords are parameters of the URL.

    With `make` nothing need lie below the prefix. Raises ConfigError, NotFound, PermissionDenied, ServiceDown.
    """
    if "@" in bucket:
        given = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" if kind == "s3" else "GOOGLE_APPLICATION_CREDENTIALS"
        raise ConfigError("credentials do not belong into a store's URL", hint=f"set {given}")
    if not bucket:
        raise ConfigError(f"the URL names no bucket: {kind}:// needs one", hint=f"write {kind}://BUCKET/PREFIX")
    root = f"{bucket}/{_text(prefix.strip(b'/'))}".rstrip("/")
    with errors(root):
        if kind == "s3":
            # One try each: the reader decides on retries.
            filesystem: arrow_fs.FileSystem = arrow_fs.S3FileSystem(
                anonymous=anonymous,
                region=region or None,
                scheme=scheme,
                endpoint_override=endpoint_override or None,
                connect_timeout=settings.host_timeout,
                request_timeout=settings.host_timeout,
                retry_strategy=arrow_fs.AwsStandardS3RetryStrategy(max_attempts=1),
            )
        else:
            filesystem = arrow_fs.GcsFileSystem(
                anonymous=anonymous,
                scheme=scheme,
                endpoint_override=endpoint_override or None,
                retry_time_limit=datetime.timedelta(seconds=settings.host_timeout),
            )
    facts = {
        "transport": f"pyarrow {pyarrow.__version__}",
        "endpoint": endpoint_override or "the provider's",
        "versions": "told apart by length and a modification time in seconds",
    }
    store = ArrowStore(filesystem, root, settings.url or f"{kind}://{root}", facts)
    try:
        found = store.stat(b"/").kind
    except NotFound:
        if not make or not prefix.strip(b"/"):
            raise
    else:
        if found is not Kind.DIRECTORY:
            raise NotADirectory(f"{root} is not a directory")
    return store


class ArrowStore(Store):
    """The files below `root`, a path of `filesystem` without a trailing slash."""

    capabilities = Capabilities(put=True, writes=True, replace=True)
    _rename_keeps_time = False

    def __init__(self, filesystem: arrow_fs.FileSystem, root: str, url: str, facts: dict[str, str]) -> None:
        self.url = url
        self._filesystem = filesystem
        self._root = root
        self._facts = facts
        self._in_use = InUse(url, lambda: None)

    def stat(self, path: bytes) -> Status:
        where = self._where(path)
        with self._in_use.reading(), errors(where):
            info = self._filesystem.get_file_info(where)
        if info.type == arrow_fs.FileType.NotFound:
            raise NotFound(f"{where} does not exist")
        return _status(path.rpartition(b"/")[2], info)

    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        where = self._where(path)
        with self._in_use.reading():
            try:
                with errors(where):
                    infos = self._filesystem.get_file_info(arrow_fs.FileSelector(where))
            except (NotFound, NotADirectory):
                # An object store says of an object only that no keys lie below it.
                if self.stat(path).kind is not Kind.DIRECTORY:
                    raise NotADirectory(f"{where} is not a directory") from None
                raise
        found: dict[bytes, Status] = {}
        for info in infos:
            name = info.base_name.encode()
            if name in (b"", b".", b"..") or not info.path.endswith(f"{where}/{info.base_name}"):
                continue
            if name > after and (name not in found or info.type == arrow_fs.FileType.File):
                found[name] = _status(name, info)
        names = in_order(list(found))
        for start in range(0, len(names), _BATCH):
            yield [found[name] for name in names[start : start + _BATCH]]

    def open(self, path: bytes, expect: Identity | None = None) -> Handle:
        status = self.stat(path)
        where = self._where(path)
        check_opened(status, expect, where)
        with self._in_use.reading(), errors(where):
            file = self._filesystem.open_input_file(where)
        return ArrowHandle(file, status, where, lambda: self.stat(path).identity)

    def put(self, path: bytes, data: Iterable[Buffer], *, replace: bool = False, parents: bool = True) -> None:
        where = self._where(path)
        if not parents and self.stat(path.rpartition(b"/")[0] or b"/").kind is not Kind.DIRECTORY:
            raise NotADirectory(f"there is no directory for {where}")
        # All of it first: pyarrow completes an upload whose writer fails, and then half an object would be there.
        whole = b"".join(data)
        with self._in_use.reading(), errors(where):
            if not replace and self._filesystem.get_file_info(where).type != arrow_fs.FileType.NotFound:
                raise Exists(f"{where} exists already")
            with self._filesystem.open_output_stream(where) as out:
                out.write(whole)

    def remove(self, path: bytes) -> None:
        where = self._where(path)
        if self.stat(path).kind is Kind.DIRECTORY:
            raise IsADirectory(f"{where} is a directory")
        with self._in_use.reading(), errors(where):
            self._filesystem.delete_file(where)

    def create(self, path: bytes, **how: Unpack[Creation]) -> Sink:
        where = self._where(path)
        if how.get("host"):
            raise Unsupported("an object store has no data hosts to choose from")
        self._check_free(path)
        with self._in_use.reading(), errors(where):
            out = self._filesystem.open_output_stream(where)
        return ArrowSink(out, where, lambda: self.stat(path), lambda: self._filesystem.delete_file(where))

    def mkdir(self, path: bytes, mode: int = 0o755) -> None:
        self._check_free(path)
        where = self._where(path)
        with self._in_use.reading(), errors(where):
            self._filesystem.create_dir(where, recursive=False)

    def rmdir(self, path: bytes) -> None:
        where = self._where(path)
        if path == b"/":
            raise Busy("the root of the store stays where it is")
        if self.stat(path).kind is not Kind.DIRECTORY:
            raise NotADirectory(f"{where} is not a directory")
        if any(self.scandir(path)):
            raise NotEmpty(f"{where} is not empty")
        with self._in_use.reading(), errors(where):
            self._filesystem.delete_dir(where)

    def rename(self, source: bytes, target: bytes, *, replace: bool = False) -> None:
        old, new = self._where(source), self._where(target)
        if b"/" in (source, target):
            raise Busy("the root of the store stays where it is")
        moving = self.stat(source)
        if moving.kind is Kind.DIRECTORY:
            raise Unsupported(f"{old} is a directory: object stores cannot rename those")
        if moving.length > _LARGEST_COPY and self.url.startswith("s3"):
            raise Unsupported(f"{old} is larger than the 5 GiB that S3 copies at once, so it cannot be renamed")
        self._check_free(target, replace=replace)
        if source == target:
            return
        with self._in_use.reading(), errors(old):
            self._filesystem.copy_file(old, new)
            self._filesystem.delete_file(old)

    def describe(self) -> dict[str, str]:
        return dict(self._facts)

    def close(self) -> None:
        self._in_use.close()

    def _check_free(self, path: bytes, *, replace: bool = False) -> None:
        """Raise what stands in the way of a new name: something there, or no directory above it."""
        where = self._where(path)
        try:
            kind = self.stat(path).kind
        except NotFound:
            above = path.rpartition(b"/")[0]
            if above and self.stat(above).kind is not Kind.DIRECTORY:
                raise NotADirectory(f"{where}: a parent is not a directory") from None
            return
        if not replace:
            raise Exists(f"{where} exists already")
        if kind is Kind.DIRECTORY:
            raise IsADirectory(f"{where} is a directory")

    def _where(self, path: bytes) -> str:
        return self._root + _text(path.rstrip(b"/"))


class ArrowHandle(Handle):
    """`file` is a pyarrow NativeFile, whose `read_at` may run many times at once; `identity` asks for the path's."""

    def __init__(self, file: Any, status: Status, where: str, identity: Callable[[], Identity]) -> None:
        self.status = status
        self._file = file
        self._where = where
        self._identity = identity
        self._in_use = InUse(where, file.close)

    def locate(self, offset: int, length: int) -> Sequence[Block]:
        return blocks_by_size(self.status, offset, length)

    def read(self, offset: int, length: int, *, host: str = "", watch: Watch | None = None) -> Buffer:
        check_range(self.status, offset, length)
        with self._in_use.reading():
            try:
                with errors(self._where):
                    data: bytes = self._file.read_at(length, offset)
            except StoreError:
                self._confirm()  # a version that is gone explains the error better
                raise
            self._confirm()
        exact(data, length, where=self._where)
        if watch is not None:
            watch.progress(length)
        return data

    def close(self) -> None:
        self._in_use.close()

    def _confirm(self) -> None:
        try:
            now = self._identity()
        except NotFound:
            raise StaleVersion(f"{self._where} was deleted") from None
        if now != self.status.identity:
            raise StaleVersion(f"{self._where} was replaced or changed while it was open")


class ArrowSink(Sink):
    """An upload through the pyarrow NativeFile `out`; status answers the object's, remove deletes it."""

    def __init__(self, out: Any, where: str, status: Callable[[], Status], remove: Callable[[], None]) -> None:
        self._out = out
        self._where = where
        self._status = status
        self._remove = remove
        self._over = False
        self._written = 0

    def write(self, data: Buffer) -> None:
        self._check_open()
        with errors(self._where):
            self._out.write(data)
        self._written += len(data)

    def close(self) -> Status:
        self._check_open()
        with errors(self._where):
            self._out.close()
        status = self._status()
        if status.length != self._written:
            self._over = True  # the object there is another writer's
            raise StaleVersion(f"{self._where} was replaced while it was written")
        self._over = True
        return status

    def abort(self) -> None:
        if self._over:
            return
        self._over = True
        for step in (self._out.close, self._remove):
            with contextlib.suppress(OSError, pyarrow.ArrowException):
                step()

    def _check_open(self) -> None:
        if self._over:
            raise StoreError(f"{self._where}: its writer is closed")


def _status(name: bytes, info: arrow_fs.FileInfo) -> Status:
    if info.type == arrow_fs.FileType.Directory:
        return Status(name, Kind.DIRECTORY, mtime_ns=info.mtime_ns or 0, mode=0o755)
    kind = Kind.FILE if info.type == arrow_fs.FileType.File else Kind.OTHER
    return Status(name, kind, length=info.size or 0, mtime_ns=info.mtime_ns or 0)


def _text(path: bytes) -> str:
    try:
        return path.decode()
    except UnicodeDecodeError:
        raise NotFound(f"{path!r}: the store's names are text, this is not UTF-8") from None


@contextmanager
def errors(where: str) -> Iterator[None]:
    """Turn pyarrow's exceptions into StoreErrors: by errno where there is one, else by what the message says."""
    try:
        yield
    except (OSError, pyarrow.ArrowException) as error:
        message = " ".join(str(error).split())
        kind = STORE_ERRORS.get(getattr(error, "errno", None))
        if kind is None:
            kind = next((kind for kind, words in _BY_MESSAGE if any(word in message for word in words)), StoreError)
        raise kind(f"{where}: {message}") from error
