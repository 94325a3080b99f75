"""WebHDFS on the wire, pure: paths, JSON documents, exception names, and HDFS's order of names.

Documents: https://hadoop.apache.org/docs/r3.4.2/hadoop-project-dist/hadoop-hdfs/WebHDFS.html; LocatedBlocks is what
GET_BLOCK_LOCATIONS answers, the operation of Hadoop's own WebHDFS client before GETFILEBLOCKLOCATIONS: it alone tells
each replica's web address beside its transfer address.
"""

from __future__ import annotations

import heapq
import re
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from stripefs.errors import (
    Busy,
    Exists,
    IsADirectory,
    NameTooLong,
    NotADirectory,
    NotEmpty,
    NotFound,
    PermissionDenied,
    QuotaExceeded,
    ServiceDown,
    StoreError,
    Transient,
    Unsupported,
)
from stripefs.format.manifest import MANIFEST_BLOCK_SIZE
from stripefs.store.base import Kind, Status
from stripefs.store.hdfs.transfer_wire import BlockName, block_name_of

__all__ = [
    "Located",
    "Replica",
    "byte_order",
    "error_in",
    "host_port",
    "inode_path",
    "last_block_of",
    "located_of",
    "page_of",
    "remote_error",
    "request_target",
    "status_of",
    "temporary_path",
]

_KINDS = {"FILE": Kind.FILE, "DIRECTORY": Kind.DIRECTORY, "SYMLINK": Kind.SYMLINK}
_AWAY = {
    # A NameNode that cannot serve now, or (told by a DataNode) one that the DataNode could not reach.
    "StandbyException",
    "ObserverRetryOnActiveException",
    "RetriableException",
    "SafeModeException",
    "ServerNotActiveException",
    "NoNamenodesAvailableException",
    "ConnectException",
    "ConnectTimeoutException",
    "NoRouteToHostException",
    "SocketTimeoutException",
    "SocketException",
    "UnknownHostException",
}
_SHAPES = (KeyError, TypeError, ValueError, AttributeError)  # errors of our look-ups in a document of another shape
_DENIED = {"AccessControlException", "SecurityException", "AuthorizationException"}
_QUOTAS = {"DSQuotaExceededException", "NSQuotaExceededException", "QuotaByStorageTypeExceededException"}
_WRITTEN = {"AlreadyBeingCreatedException", "RecoveryInProgressException"}
_UNAUTHENTICATED = {"AuthenticationException", "InvalidToken", "ExpiredTokenException"}


@dataclass(frozen=True, slots=True)
class Replica:
    """name is ip:port for transfers, as HDFS names DataNodes; web_port is 0 where the DataNode speaks only https."""

    name: str
    ip: str
    hostname: str
    web_port: int


@dataclass(frozen=True, slots=True)
class Located:
    """A block of a file, sizes in bytes, replicas in the NameNode's order (nearest first).

    name: None for a block that is read by WebHDFS only.
    """

    offset: int
    length: int
    replicas: tuple[Replica, ...]
    name: BlockName | None = None


def host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def request_target(path: str, operation: str, user: str, parameters: Mapping[str, str | int]) -> str:
    """The part of a WebHDFS URL behind the host. `path` is an absolute HDFS path in plain text."""
    query = urlencode({"op": operation, "user.name": user, **parameters}, quote_via=quote)
    return f"/webhdfs/v1{quote(path, safe='/')}?{query}"


def temporary_path(path: str) -> str:
    """A hidden name beside `path`, for what is renamed to it once it is whole; no two are alike.

    HDFS takes names of 255 bytes, and this one keeps 200 of those of `path`.
    """
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name.encode()[:200].decode(errors='ignore')}.{uuid.uuid4().hex}.tmp"


def inode_path(file_id: str) -> str:
    """The path that always means this inode, wherever it was renamed to and whatever took its place."""
    return f"/.reserved/.inodes/{file_id}"


def status_of(document: Mapping[str, Any], name: bytes | None = None) -> Status:
    """The answer to GETFILESTATUS as Status; `name` where the document does not tell it. Raises StoreError."""
    try:
        return _status(document["FileStatus"], name)
    except _SHAPES as error:
        raise StoreError(f"the NameNode answered no FileStatus: {error!r}") from error


def page_of(document: Mapping[str, Any]) -> tuple[list[Status], bool]:
    """The answer to LISTSTATUS_BATCH: its entries and whether more follow. Raises StoreError."""
    try:
        listing = document["DirectoryListing"]
        entries = listing["partialListing"]["FileStatuses"]["FileStatus"]
        return [_status(entry, None) for entry in entries], bool(listing["remainingEntries"])
    except _SHAPES as error:
        raise StoreError(f"the NameNode answered no DirectoryListing: {error!r}") from error


def _status(document: Mapping[str, Any], name: bytes | None) -> Status:
    return Status(
        name=document["pathSuffix"].encode() if name is None else name,
        kind=_KINDS.get(document["type"], Kind.OTHER),
        length=int(document["length"]),
        mtime_ns=int(document["modificationTime"]) * 1_000_000,
        atime_ns=int(document["accessTime"]) * 1_000_000,
        mode=int(document["permission"], 8) & 0o7777,
        owner=sys.intern(document["owner"]),  # a listing of many files would keep as many copies
        group=sys.intern(document["group"]),
        file_id=str(document["fileId"]) if document.get("fileId") else "",
        block_size=int(document["blockSize"]),
        replication=int(document["replication"]),
        marked=document["blockSize"] == MANIFEST_BLOCK_SIZE,
        encrypted=bool(document.get("encBit")),
    )


def located_of(document: Mapping[str, Any]) -> list[Located]:
    """The answer to GET_BLOCK_LOCATIONS as blocks in order. Raises StoreError."""
    try:
        blocks = [
            Located(
                offset=int(block["startOffset"]),
                length=int(block["block"]["numBytes"]),
                replicas=_replicas(block),
                name=block_name_of(block),
            )
            for block in document["LocatedBlocks"]["locatedBlocks"]
        ]
    except _SHAPES as error:
        raise StoreError(f"the NameNode answered no LocatedBlocks: {error!r}") from error
    return sorted(blocks, key=lambda block: block.offset)


def last_block_of(document: Mapping[str, Any]) -> tuple[int, tuple[Replica, ...]]:
    """The same answer about a file that is being written: its number of blocks, and who writes the last one."""
    try:
        located = document["LocatedBlocks"]
        last = located["lastLocatedBlock"]
        return len(located["locatedBlocks"]), _replicas(last) if last else ()
    except _SHAPES as error:
        raise StoreError(f"the NameNode answered no LocatedBlocks: {error!r}") from error


def _replicas(block: Mapping[str, Any]) -> tuple[Replica, ...]:
    return tuple(
        Replica(replica["name"], replica["ipAddr"], replica["hostName"], int(replica["infoPort"]))
        for replica in block["locations"]
    )


def error_in(document: object, where: str) -> StoreError | None:
    """The error that an answer about `where` tells; None for a document of another shape."""
    remote = document.get("RemoteException") if isinstance(document, dict) else None
    if not isinstance(remote, dict) or "message" not in remote:
        return None
    return remote_error(str(remote.get("javaClassName") or remote.get("exception")), str(remote["message"]), where)


def remote_error(exception: str, message: str, where: str) -> StoreError:
    """The error of ours for a Java exception (simple or full class name) that a server answered about `where`."""
    name = exception.rpartition(".")[2].rpartition("$")[2]
    reason = message.strip().partition("\n")[0].strip() or name
    if name == "FileNotFoundException" and "not a file" in reason:
        return IsADirectory(f"{where} is a directory")
    if name in ("FileNotFoundException", "InvalidPathException", "UnresolvedPathException"):
        return NotFound(f"{where} does not exist")
    if name in ("ParentNotDirectoryException", "PathIsNotDirectoryException") or "is not a directory)" in reason:
        return NotADirectory(f"{where}: a parent is not a directory")
    if name == "FileAlreadyExistsException":
        return Exists(f"{where} exists already")
    if name in _UNAUTHENTICATED:
        return PermissionDenied(f"{where}: the cluster wants to know who we are: {reason}", hint="it may use Kerberos")
    if name in _DENIED:
        return PermissionDenied(f"{where}: {reason}", hint="--hdfs-user NAME reads as somebody else")
    # An RPC connection that ended has this class too, and names its two ends; a read past the end of a file does not.
    if name in _AWAY or (name == "EOFException" and "destination host" in reason):
        return ServiceDown(f"{where}: the NameNode cannot serve: {name}: {reason}")
    if (change := _refused_change(name, reason, where)) is not None:
        return change
    if name == "UnsupportedOperationException" or re.search("is not a valid [A-Z]+ operation", reason):
        return Unsupported(f"{where}: {reason}")
    if name == "IllegalArgumentException" and "Invalid path" in reason:
        return NotFound(f"{where} does not exist")
    return StoreError(f"{where}: {name}: {reason}")


def _refused_change(name: str, reason: str, where: str) -> StoreError | None:
    """The error for what only changes meet."""
    if name in _QUOTAS:
        return QuotaExceeded(f"{where}: {reason}")
    if name == "PathComponentTooLongException" or "Pathname too long" in reason:
        return NameTooLong(f"{where}: {reason}")
    if name == "PathIsNotEmptyDirectoryException" or "destination directory is not empty" in reason:
        return NotEmpty(f"{where} is a directory that is not empty")
    # A replica that its DataNode has yet to report; a file that the NameNode has given to nobody meanwhile.
    if name in ("NotReplicatedYetException", "LeaseExpiredException"):
        return Transient(f"{where}: {reason}")
    if name in _WRITTEN:
        return Busy(f"{where} is being written by another client")
    return None


def byte_order(batches: Iterator[Sequence[Status]], after: bytes = b"") -> Iterator[Sequence[Status]]:
    """The entries of `batches` that sort after `after`, in byte order of their names, in non-empty batches.

    `batches` holds each name once, in signed or in unsigned byte order.
    """
    held: list[tuple[bytes, bytes, Status]] = []
    for batch in batches:
        ready = []
        for entry in batch:
            while held and not entry.name.startswith(held[0][1]):
                ready.append(heapq.heappop(held)[2])
            common = _ascii_prefix(entry.name)
            if len(common) < len(entry.name):
                heapq.heappush(held, (entry.name, common, entry))
            else:
                ready.append(entry)
        ready = [entry for entry in ready if entry.name > after]
        if ready:
            yield ready
    rest = [entry for _, _, entry in sorted(held, key=lambda item: item[0]) if entry.name > after]
    if rest:
        yield rest


def _ascii_prefix(name: bytes) -> bytes:
    if name.isascii():
        return name
    return name[: next(k for k, byte in enumerate(name) if byte > 0x7F)]
