"""The writing half of `HdfsStore`: which client does what.

Names, attributes and joins go to the NameNodes by WebHDFS where it answers, else by hdfs-native, which cannot join. A
file for a chosen DataNode is sent to it by WebHDFS; any other by hdfs-native, for which the NameNode picks DataNodes,
or, with `--hdfs-transport webhdfs`, to a live DataNode picked here. Documents (manifests, records, locks) go to such a
one too: closing a file takes hdfs-native 400 ms at least, since it waits that long before it asks the NameNode again
whether the last block was reported. A document took 510 ms by hdfs-native, 25 by WebHDFS in most cases, 430 in the
others, where the DataNode waits likewise. An empty document has no block, so there hdfs-native asks the NameNode alone.

Locks come and go with every file that is written (`put_document`). Theirs is an empty file with the document as an
extended attribute: no block is placed, written, reported and invalidated for it, and nobody waits for a DataNode. Where
the NameNode refuses extended attributes, or the document is long, it is the content of the file.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace as replaced
from functools import partial
from typing import Unpack

from stripefs.errors import (
    Busy,
    Exists,
    HostFailed,
    NotADirectory,
    NotFound,
    ServiceDown,
    StaleVersion,
    StoreError,
    Transient,
    Unsupported,
)
from stripefs.retry import HostHealth
from stripefs.store.base import Buffer, Creation, Identity, Kind, Sink, Status
from stripefs.store.hdfs.block_locations import DataNodes
from stripefs.store.hdfs.data_transfer import DataTransfer
from stripefs.store.hdfs.datanode_write import PATIENCE, DataNodeSink
from stripefs.store.hdfs.hadoop_conf import Target
from stripefs.store.hdfs.namenode_rpc import CallsRefused, NameNodeRpc
from stripefs.store.hdfs.namenode_webhdfs import NameNodeRest
from stripefs.store.hdfs.namespace import Namespace, WebNamespaceCalls
from stripefs.store.hdfs.native import NativeClient
from stripefs.store.hdfs.native_write import NativeNamespaceCalls, NativeSink
from stripefs.store.hdfs.pipeline_health import PipelineHealth
from stripefs.store.hdfs.transfer_wire import ChunkSums
from stripefs.store.hdfs.transfer_write import PRIVATE_CHUNK, Placement, TransferSink
from stripefs.store.hdfs.wire import inode_path, request_target, temporary_path

__all__ = ["DOCUMENT", "HdfsWriter"]

_log = logging.getLogger(__name__)

DOCUMENT = "user.stripefs.document"
"""The extended attribute of `put_document`."""

_ATTRIBUTE = 8 << 10
"""Most bytes of it: a NameNode takes 16 KiB for all of a file."""

_DOCUMENT = 1 << 20
"""Most bytes of a file that `put` sends to one DataNode; hdfs-native mends the pipeline of a longer one."""

_DOCUMENT_TIMES = 2
"""Time-outs for which DataNodes are tried with a document, _DOCUMENT_HOSTS at most, before hdfs-native is."""

_DOCUMENT_HOSTS = 6

_HIDDEN = 1024
"""Files with hidden names of which is remembered what they are until they are renamed."""


class HdfsWriter:
    """Paths are HDFS's, in plain text; the store's own root stays where it is.

    rest is None where WebHDFS does not answer, native where the transport leaves it out, datanodes where files cannot
    be placed, transfer where the cluster has no data transfer for us. `stat` is the store's; timeout that of one silent
    host, in seconds. `changes`: those of names and attributes that need nothing else of this.
    """

    def __init__(
        self,
        rest: NameNodeRest | None,
        native: NativeClient | None,
        datanodes: DataNodes | None,
        stat: Callable[[str], Status],
        *,
        transfer: DataTransfer | None = None,
        target: Target,
        health: HostHealth,
        timeout: float,
    ) -> None:
        self._rest = rest
        self._native = native
        self._datanodes = datanodes
        self._pipelines = None
        if rest is not None and datanodes is not None:
            self._pipelines = PipelineHealth(rest, datanodes, health, timeout)
        self._transfer: Placement | None = None
        if transfer is not None and rest is not None and datanodes is not None and self._pipelines is not None:
            self._transfer = _placement(rest, datanodes, transfer, self._pipelines, target, timeout)
        self._without_transfer: dict[str, None] = {}  # directories with erasure coding, or encrypted
        self._stat = stat
        self._root = target.root.decode() or "/"
        self._user = target.user
        self._new_files = (target.block_size, target.replication)
        self._timeout = timeout
        self._health = health
        self._attributes = rest is not None
        """False where the NameNode is known to refuse extended attributes."""
        self._hidden: dict[str, Status] = {}  # files of ours that have yet to be renamed
        self._lock = threading.Lock()
        if rest is not None:
            self.changes = Namespace(WebNamespaceCalls(rest, stat))
        elif native is not None:
            self.changes = Namespace(NativeNamespaceCalls(native, stat))
        else:
            raise ServiceDown("neither WebHDFS nor the RPC port can be used")

    def create(self, path: str, **how: Unpack[Creation]) -> Sink:
        host, length = how.get("host", ""), how.get("length")
        block_size = how.get("block_size") or self._new_files[0]
        replication = how.get("replication") or self._new_files[1]
        if not _is_hidden(path):  # a hidden name is new, and the DataNode refuses one that is not
            with contextlib.suppress(NotFound):
                self._stat(path)
                raise Exists(f"{path} exists already")
        if not host and self._native is not None:
            return NativeSink(
                self._native,
                path,
                block_size=block_size,
                replication=replication,
                confirm=partial(self._written, path),
                discard=partial(self._discard, path),
            )
        return self._placed(
            path, host or self._any_datanode(), block_size, replication, length, private=how.get("private", False)
        )

    def _placed(
        self,
        path: str,
        host: str,
        block_size: int,
        replication: int,
        length: int | None,
        *,
        document: bool = False,
        private: bool = False,
    ) -> Sink:
        """A new file at `host`. Raises NotFound, at the latest when it is closed, where the directory is missing.

        The host of a document may not be silent for longer than a reader's: there are others, and a lock that is to be
        renewed does not wait.
        """
        if self._datanodes is None or self._pipelines is None:
            raise Unsupported("files can be placed on a DataNode of one's choice only by WebHDFS")
        address = self._datanodes.address(host)
        if self._pipelines.silent([host]):
            raise HostFailed(f"DataNode {host} is silent", host=host, stalled=True)
        block_size, replication = self._shape(block_size, replication)

        def by_web() -> DataNodeSink:
            return DataNodeSink(
                address,
                self._target(path, block_size, replication),
                path,
                name=host,
                timeout=self._timeout,
                patience=patience,
                length=length,
                block_size=block_size,
                pipelines=pipelines,
                confirm=confirm,
                discard=discard,
            )

        patience, pipelines = 1 if document else PATIENCE, self._pipelines
        confirm, discard = partial(self._written, path), partial(self._discard, path)
        by = self._transfer
        if by is None or not length or _folder(path) in self._without_transfer or not block_size or not replication:
            return by_web()
        if by.transfer.refusals.reason(self._datanodes.transfer_address(host)):
            return by_web()
        try:
            return TransferSink(
                by,
                path,
                host=host,
                length=length,
                block_size=block_size,
                replication=replication,
                patience=patience,
                private=private,
                confirm=confirm,
                discard=discard,
                instead=by_web,
            )
        except Unsupported as error:
            _log.info("%s is written by WebHDFS: %s", path, error)
            if isinstance(error, CallsRefused):
                self._transfer = None
            else:
                if len(self._without_transfer) >= _HIDDEN:
                    self._without_transfer.clear()
                self._without_transfer[_folder(path)] = None
            return by_web()

    def put(self, path: str, data: Iterable[Buffer], *, replace: bool, parents: bool = True) -> Status | None:
        pieces = list(data)
        length = sum(len(memoryview(piece).cast("B")) for piece in pieces)
        if self._native is not None and (self._datanodes is None or not 0 < length <= _DOCUMENT):
            self._put_native(self._native, path, pieces, replace=replace, parents=parents)
            return None
        done = self._put_somewhere(path, pieces, length, replace=replace, parents=parents)
        if isinstance(done, Status):
            return done
        if self._native is None:
            raise done
        _log.info("%s is written by hdfs-native: %s", path, done)
        self._put_native(self._native, path, pieces, replace=replace, parents=parents)
        return None

    def put_document(self, path: str, data: bytes) -> Status | None:
        if self._rest is not None and self._native is not None and self._attributes and len(data) <= _ATTRIBUTE:
            status = self._put_attribute(self._rest, self._native, path, data)
            if status is not None:
                return status
        return self.put(path, [data], replace=False, parents=False)

    def _put_attribute(self, rest: NameNodeRest, native: NativeClient, path: str, data: bytes) -> Status | None:
        """The document as an extended attribute of an empty file; None where that is refused."""
        temporary = temporary_path(path)
        native.create_empty(temporary)
        try:
            status = self._written(temporary)
            try:
                rest.set_attribute(temporary, DOCUMENT, data)
            except (NotFound, Transient):
                raise
            except StoreError as error:
                _log.info("documents are written as files: %s", error)
                self._attributes = False
                self._remove_quietly(temporary)
                return None
            self._rename(temporary, path, replace=False)
        except BaseException:
            self._remove_quietly(temporary)
            raise
        return replaced(status, name=path.rpartition("/")[2].encode())

    def move_document(self, source: str, target: str, seen: Identity, data: bytes) -> None:
        if self._rest is None or seen.length or len(data) > _ATTRIBUTE:
            raise Unsupported(f"{source} is no document that can be moved")
        try:
            self._rest.set_attribute(inode_path(seen.file_id), DOCUMENT, data)
            if source != target:
                self.changes.move_inode(seen.file_id, target)
        except NotFound:
            raise StaleVersion(f"{source} was replaced or removed") from None

    def _remove_quietly(self, path: str) -> None:
        with contextlib.suppress(StoreError):
            self.changes.remove(path)

    def _put_native(
        self, native: NativeClient, path: str, pieces: Sequence[Buffer], *, replace: bool, parents: bool
    ) -> None:
        if not parents and self._stat(_folder(path)).kind is not Kind.DIRECTORY:
            raise NotADirectory(f"there is no directory for {path}")
        native.put(path, pieces, replace=replace)

    def _put_somewhere(
        self, path: str, pieces: Sequence[Buffer], length: int, *, replace: bool, parents: bool
    ) -> Status | HostFailed:
        """At a DataNode, each of which is tried once; the file's status, or why it could not be written."""
        failure: HostFailed | None = None
        end = time.monotonic() + _DOCUMENT_TIMES * self._timeout
        tried: set[str] = set()
        while failure is None or (len(tried) < _DOCUMENT_HOSTS and time.monotonic() < end):
            try:
                name = self._any_datanode(tried)
            except HostFailed as error:
                return failure or error
            tried.add(name)
            try:
                status = self._put_at(name, path, pieces, length, replace=replace, parents=parents)
            except HostFailed as error:
                failure = error
                self._health.failed(error.host or name, time.monotonic(), error.message)
            else:
                self._health.worked(name)
                return status
        return failure

    def _put_at(
        self, host: str, path: str, pieces: Sequence[Buffer], length: int, *, replace: bool, parents: bool
    ) -> Status:
        """Written under a hidden name beside `path`, then renamed. Raises HostFailed before anything is at `path`."""
        temporary = temporary_path(path)

        def write() -> Status:
            return self._placed(temporary, host, *self._new_files, length, document=True).complete(pieces)

        try:
            status = write()
        except NotFound:
            if not parents:
                raise
            self.changes.make_directories(_folder(path))
            status = write()
        try:
            self._rename(temporary, path, replace=replace)
        except BaseException:
            self._remove_quietly(temporary)
            raise
        return replaced(status, name=path.rpartition("/")[2].encode())

    def rmdir(self, path: str) -> None:
        self._refuse_root(path)
        self.changes.rmdir(path)

    def rename(self, source: str, target: str, *, replace: bool) -> None:
        self._refuse_root(source, target)
        self._rename(source, target, replace=replace)

    def compare_and_rename(self, source: str, target: str, seen: Identity) -> None:
        self.changes.compare_and_rename(source, target, seen, moving=self._known(source))

    def close(self) -> None:
        """Let go of what is laid aside."""
        if self._pipelines is not None:
            self._pipelines.close()
        if self._transfer is not None:
            self._transfer.rpc.close()

    def _refuse_root(self, *paths: str) -> None:
        if self._root in paths:
            raise Busy("the root of the store stays where it is")

    def _written(self, path: str) -> Status:
        """The file that was written at `path`, for its renaming to ask no more about it."""
        status = self._stat(path)
        if status.file_id and _is_hidden(path):  # files of visible names may change hands
            with self._lock:
                self._hidden[path] = status
                if len(self._hidden) > _HIDDEN:
                    del self._hidden[next(iter(self._hidden))]
        return status

    def _rename(self, source: str, target: str, *, replace: bool) -> None:
        self.changes.rename(source, target, replace=replace, moving=self._known(source))

    def _known(self, source: str) -> Status | None:
        """A hidden file of ours that is about to be renamed; None for any other."""
        with self._lock:
            return self._hidden.pop(source, None)

    def _discard(self, path: str, at_most: int) -> None:
        """Remove a file of ours that is no good. A longer one is none of ours."""
        with contextlib.suppress(StoreError):
            found = self._stat(path)
            if found.kind is Kind.FILE and found.length <= at_most:
                self.changes.remove(path)

    def _any_datanode(self, but: Set[str] = frozenset()) -> str:
        known = self._datanodes.known() if self._datanodes else ()
        live = [host.name for host in known if host.live and host.name not in but]
        if not live:
            raise HostFailed("no DataNode is known that could take a file")
        return random.choice(self._health.well(live, time.monotonic()) or live)  # noqa: S311 - spreads load

    def _target(self, path: str, block_size: int, replication: int) -> str:
        """The request that a DataNode gets. It makes no directories: a DataNode that hung may answer it minutes later,
        and would bring back a directory that was removed meanwhile."""
        assert self._rest is not None
        rest = self._rest
        parameters: dict[str, str | int] = {
            "namenoderpcaddress": rest.rpc_address(
                lambda: rest.change("PUT", "CREATE", path, noredirect="true", overwrite="false")
            ),
            "overwrite": "false",
            "createparent": "false",
            "permission": "644",
        }
        given = {"blocksize": block_size, "replication": replication}
        parameters |= {key: value for key, value in given.items() if value}
        return request_target(path, "CREATE", self._user, parameters)

    def _shape(self, block_size: int, replication: int) -> tuple[int, int]:
        """A value that is not given is the NameNode's default, as hdfs-native asks it too; 0 where it does not tell.

        A DataNode would take its own configuration instead.
        """
        if self._rest is None or (block_size and replication):
            return block_size, replication
        found = self._rest.defaults() or {"blockSize": 0, "replication": 0}  # which it does not tell before Hadoop 3.3
        return block_size or int(found["blockSize"]), replication or int(found["replication"])


def _placement(
    rest: NameNodeRest,
    datanodes: DataNodes,
    transfer: DataTransfer,
    pipelines: PipelineHealth,
    target: Target,
    timeout: float,
) -> Placement | None:
    """The services of files that are written by data transfer; None where the cluster wants no checksums of ours."""
    defaults = rest.defaults() or {}
    try:
        kind, chunk = int(defaults["checksumType"]), int(defaults["bytesPerChecksum"])
        sums, private_sums = ChunkSums(kind, chunk), ChunkSums(kind, max(chunk, PRIVATE_CHUNK))
    except (KeyError, TypeError, ValueError):
        return None
    rpc = NameNodeRpc([namenode.rpc for namenode in target.namenodes], target.user, timeout)
    return Placement(rpc, transfer, datanodes, pipelines, sums, private_sums, timeout)


def _folder(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _is_hidden(path: str) -> bool:
    return path.rpartition("/")[2].startswith(".")
