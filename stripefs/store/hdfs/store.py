"""`HdfsStore`: a directory of HDFS as a store.

Metadata comes from WebHDFS at the NameNode where it answers (file ids, block locations), else from hdfs-native's RPC
(neither, so no placement, no limits per DataNode and no hedging on a chosen replica). Bytes come

    data transfer   from the DataNode that the caller chose, by HDFS's own protocol: `auto` where WebHDFS answers at the
                    NameNode and the cluster wants neither tokens nor encryption
    webhdfs         from that DataNode by WebHDFS: `auto` for what it does not grant otherwise
    native          from a replica that hdfs-native chose: `auto` elsewhere
    libhdfs         from a replica that libhdfs chose

CPU seconds of the client and of the DataNodes for a GB (8 DataNodes without a cap and the client on 2 cores, 24
threads, ranges of 8 MiB): data transfer 0.75 and 0.8, WebHDFS 0.65 and 5 (2 with JVMs that are warm), hdfs-native 2.0
and 0.8.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Unpack

from stripefs.errors import (
    ConfigError,
    HostFailed,
    NotADirectory,
    NotFound,
    PermissionDenied,
    ServiceDown,
    StaleVersion,
    StoreError,
    Unsupported,
)
from stripefs.settings import StoreSettings
from stripefs.store.base import (
    Attributes,
    Buffer,
    Capabilities,
    Creation,
    Handle,
    Host,
    Identity,
    Kind,
    Sink,
    Space,
    Status,
    Store,
)
from stripefs.store.common import check_opened
from stripefs.store.hdfs.block_locations import DataNodes
from stripefs.store.hdfs.data_transfer import DataTransfer
from stripefs.store.hdfs.datanode_read import DataNodeReader, SmallReader
from stripefs.store.hdfs.fetch_process import FetchProcess
from stripefs.store.hdfs.hadoop_conf import resolve
from stripefs.store.hdfs.handle import CheckedHandle, HdfsHandle
from stripefs.store.hdfs.namenode_failover import Availability
from stripefs.store.hdfs.namenode_webhdfs import NameNodeRest
from stripefs.store.hdfs.native import NativeClient, PinnedClient, PinnedFile
from stripefs.store.hdfs.short_files import ShortFiles
from stripefs.store.hdfs.transfer_wire import refusal_of
from stripefs.store.hdfs.wire import byte_order, inode_path, status_of
from stripefs.store.hdfs.writer import DOCUMENT, HdfsWriter

__all__ = ["HdfsStore"]

_TRANSPORTS = ("auto", "native", "webhdfs", "libhdfs")
_OPEN_ATTEMPTS = 3
_SOME = 3  # reasons of hosts that one line of facts has room for
_AUTO_RULE = "auto prefers it: three fifths of the client CPU of hdfs-native, and the replica is ours to choose"


class HdfsStore(Store):
    """Connects when made: raises ConfigError, or ServiceDown, NotFound or PermissionDenied about the root.

    With `make` the root is made where it is missing.
    """

    def __init__(self, settings: StoreSettings, *, make: bool = False) -> None:
        if settings.transport not in _TRANSPORTS:
            raise ConfigError(
                f"{settings.transport!r} is no HDFS transport", hint=f"known are {', '.join(_TRANSPORTS)}"
            )
        self.url = settings.url
        self._settings = settings
        self._target = resolve(settings, os.environ)
        self._rest = NameNodeRest(
            [namenode.web for namenode in self._target.namenodes], self._target.user, settings.host_timeout
        )
        self._datanodes = DataNodes(self._rest, by_hostname=settings.use_datanode_hostname)
        self._away = Availability(self._look)
        self.reads = DataNodeReader(self._rest, self._datanodes, self._target.user, settings.host_timeout)
        self.small = SmallReader(self.reads, self.health, lambda full: self._stat(full, b""), settings.host_timeout)
        self.short_files = ShortFiles(self.reads, self.health)
        self._off: dict[str, str] = {}
        self._native: NativeClient | None = None
        try:
            # In this order: a NameNode that starts opens its web port before its RPC port. The other way round one that
            # comes up between the two would seem to have no WebHDFS, and so no file ids, for as long as we live.
            self._native = self._connect_native()
            self._web = self._probe_web()
            if make:
                self._need_native().make_directory(self._full(b"/"))
            self._root_status = self.stat(b"/")
            if self._root_status.encrypted and settings.transport == "auto" and self._native is not None:
                self._native.close()
                self._native = None
                self._off["native"] = "this is an encryption zone, whose keys DataNodes ask for by WebHDFS"
            self._inodes = self._web and self._probe_inodes()
            self._pinning: PinnedClient | None = self._pinning_client()
            self.chooses_host = self._inodes and settings.transport in ("auto", "webhdfs")
            if self.chooses_host and settings.transport == "auto":
                self._connect_data_transfer()
        except BaseException:
            self.reads.close()
            self._rest.close()
            if self._native is not None:
                self._native.close()
            raise
        self.finds_blocks = self._inodes
        self.capabilities = Capabilities(
            locations=self.finds_blocks,
            choose_host=self.chooses_host,
            file_ids=self._web,
            pinned=True,
            permissions=True,
            cancel=self.chooses_host,
            copies=not self.chooses_host,
            put=self._native is not None or self.chooses_host,
            put_if_absent=self._native is not None or self.chooses_host,
            writes=self._native is not None or self.chooses_host,
            replace=True,
            place=self.chooses_host,
            concat=self._web,
            compare=self._inodes,
            move_document=self._inodes and self._native is not None,
            attributes=True,
            replication=True,
            marks=True,
        )
        self._writer = HdfsWriter(
            self._rest if self._web else None,
            self._native,
            self._datanodes if self.chooses_host else None,
            lambda full: self._stat(full, full.rpartition("/")[2].encode()),
            transfer=self.reads.transfer,
            target=self._target,
            health=self.health,
            timeout=settings.host_timeout,
        )
        if self._root_status.kind is not Kind.DIRECTORY:
            self.close()
            raise NotADirectory(f"{self.url} is a file", hint="give the directory that holds it")

    def stat(self, path: bytes) -> Status:
        name = path.rpartition(b"/")[2]
        return self._stat(self._full(path), name)

    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        full = self._full(path)
        return byte_order(self._rest.listing(full) if self._web else self._need_native().listing(full), after)

    def open(self, path: bytes, expect: Identity | None = None) -> Handle:
        return self._open(path, expect, _OPEN_ATTEMPTS)

    def _open(self, path: bytes, expect: Identity | None, attempts: int) -> Handle:
        full = self._full(path)
        short = self.short_files.read(full, expect) if expect is not None else None
        status = self.stat(path)
        check_opened(status, expect, os.fsdecode(path))
        try:
            return HdfsHandle(self, full, status, None if status.encrypted else short)
        except StaleVersion:  # replaced while we opened it; a caller that expects nothing takes the newer version
            if expect is not None or attempts == 1:
                raise
        return self._open(path, expect, attempts - 1)

    def open_checked(self, path: bytes, length: int) -> Handle:
        if not self.chooses_host:
            return self.open(path)
        return CheckedHandle(self, self._full(path), path.rpartition(b"/")[2], length)

    def get(self, path: bytes) -> Buffer:
        native, full = self._native, self._full(path)
        document = None
        if native is not None and not self.chooses_host:
            document = native.get(full)
        elif native is not None and not self.small.avoiding:
            with contextlib.suppress(HostFailed, ServiceDown):
                document = self.small.try_first(full, lambda: native.get(full))
        return super().get(path) if document is None else document

    def read_small(self, path: bytes, length: int) -> Buffer:
        answers = self._small_by_native([path], length)
        if answers is None:
            return super().read_small(path, length)
        if isinstance(answers[0], StoreError):
            raise answers[0]
        return answers[0]

    def read_small_files(self, paths: Sequence[bytes], length: int) -> list[Buffer | StoreError]:
        answers = self._small_by_native(paths, length)
        return super().read_small_files(paths, length) if answers is None else answers

    def _small_by_native(self, paths: Sequence[bytes], length: int) -> list[Buffer | StoreError] | None:
        """The answers of hdfs-native for all at once; None without it, or where one is no name of HDFS."""
        native = self._native
        if native is None:
            return None
        try:
            full = [self._full(path) for path in paths]
        except NotFound:
            return None
        if self.chooses_host:
            return self.small.read_small_files(native, full, length)
        return native.read_small_files(full, length)

    def put(self, path: bytes, data: Iterable[Buffer], *, replace: bool = False, parents: bool = True) -> Status | None:
        return self._writer.put(self._full(path), data, replace=replace, parents=parents)

    def put_document(self, path: bytes, data: bytes) -> Status | None:
        return self._writer.put_document(self._full(path), data)

    def move_document(self, source: bytes, target: bytes, seen: Identity, data: bytes) -> None:
        self._writer.move_document(self._full(source), self._full(target), seen, data)

    def get_document(self, path: bytes) -> Buffer:
        data = self._rest.attribute(self._full(path), DOCUMENT) if self._web else None
        return self.get(path) if data is None else data

    def remove(self, path: bytes) -> None:
        self._writer.changes.remove(self._full(path))

    def create(self, path: bytes, **how: Unpack[Creation]) -> Sink:
        return self._writer.create(self._full(path), **how)

    def has_quota(self, path: bytes) -> bool:
        """Without one the NameNode sums the directory up, in steps: ask seldom."""
        full = self._full(path)
        if not self._web:
            found = self._need_native().ask(lambda client: client.get_content_summary(full), full)
            return any(0 < limit < 1 << 63 for limit in (found.quota, found.space_quota))  # -1 comes unsigned
        usage = self._rest.ask("GETQUOTAUSAGE", full).get("QuotaUsage", {})
        limits = [usage.get("quota", -1), usage.get("spaceQuota", -1)]
        limits += [each.get("quota", -1) for each in usage.get("typeQuota", {}).values()]
        return any(int(limit) > 0 for limit in limits)

    def refused_name(self, name: bytes) -> str:
        if b":" in name:
            return "HDFS takes no ':' in a name"
        if name == b".snapshot":
            return "HDFS keeps it for snapshots"
        try:
            name.decode()
        except UnicodeDecodeError:
            return "HDFS names are UTF-8"
        return ""

    def mkdir(self, path: bytes, mode: int = 0o755) -> None:
        self._writer.changes.mkdir(self._full(path), mode)

    def rmdir(self, path: bytes) -> None:
        self._writer.rmdir(self._full(path))

    def rename(self, source: bytes, target: bytes, *, replace: bool = False) -> None:
        self._writer.rename(self._full(source), self._full(target), replace=replace)

    def compare_and_rename(self, source: bytes, target: bytes, seen: Identity) -> None:
        if not self.capabilities.compare:
            super().compare_and_rename(source, target, seen)
            return
        self._writer.compare_and_rename(self._full(source), self._full(target), seen)

    def compare_and_remove(self, path: bytes, seen: Identity) -> None:
        if not self.capabilities.compare:
            super().compare_and_remove(path, seen)
            return
        self._writer.changes.compare_and_remove(self._full(path), seen)

    def set_attributes(self, path: bytes, attributes: Attributes) -> None:
        self._writer.changes.set_attributes(self._full(path), attributes)

    def concat(self, target: bytes, sources: Sequence[bytes]) -> None:
        self._writer.changes.concat(self._full(target), [self._full(source) for source in sources])

    def space(self) -> Space | None:
        if not self._web:
            return None
        try:
            bean = self._rest.jmx("FSNamesystemState")
            return Space(int(bean["CapacityTotal"]), int(bean["CapacityRemaining"]), int(bean.get("FilesTotal", 0)))
        except (StoreError, KeyError):  # /jmx may be closed to us
            return self._space_by_status()

    def hosts(self) -> Sequence[Host]:
        return self._datanodes.known() if self.finds_blocks else ()

    def describe(self) -> dict[str, str]:
        transfer = self.reads.transfer
        refused = transfer.refusals.reason() if transfer is not None else ""
        chosen = "data transfer" if transfer is not None and not refused else "webhdfs"
        facts = {
            "transport": chosen if self.chooses_host else self._pinning.name if self._pinning else "none",
            "why": self._why(),
            "metadata": "webhdfs" if self._web else "native",
            "user": self._target.user,
            "namenodes": ", ".join(f"{node.rpc} (http {node.web})" for node in self._target.namenodes),
        }
        if self._web:
            facts["active"] = self._rest.active
        if self.chooses_host:
            facts["when the NameNode is away"] = (
                f"open files are read by {self._pinning.name}" if self._pinning else "reads fail"
            )
        if refused:
            facts["off: data transfer"] = refused
        elif transfer is not None and (paused := transfer.refusals.paused()):
            facts["off: data transfer from some DataNodes"] = "; ".join(map(transfer.refusals.reason, paused[:_SOME]))
        return facts | {f"off: {what}": why for what, why in self._off.items()}

    def close(self) -> None:
        self.reads.close()
        self._writer.close()
        self._rest.close()
        if self._native is not None:
            self._native.close()

    # Services for handles. `path` is an HDFS path in plain text.

    def current(self, path: str, status: Status) -> Status:
        """The file of `status` as it is now, by its inode where there are file ids, else whatever is at `path`."""
        if status.file_id and self._inodes:
            return status_of(self._rest.ask("GETFILESTATUS", inode_path(status.file_id)), status.name)
        return self._stat(path, status.name)

    def pin(self, path: str, status: Status) -> PinnedFile | None:
        """The file pinned by a client library, None where there is none. Raises StoreErrors."""
        if self._pinning is None:
            return None
        by_inode = status.file_id and self._inodes and self._pinning is self._native
        return self._pinning.open(inode_path(status.file_id) if by_inode else path, status.length)

    def namenode_away(self) -> bool:
        return self._away.now()

    def note_away(self) -> None:
        self._rest.forget_rpc_address()
        self._away.note()

    # Connecting.

    def _probe_web(self) -> bool:
        """True if WebHDFS answers at a NameNode."""
        try:
            self._greet()
        except (NotFound, PermissionDenied, Unsupported, ServiceDown) as error:
            if self._settings.transport == "webhdfs":
                raise
            self._off["webhdfs"] = str(error)
            self._off["block locations, file ids, choice of replica, limits per DataNode"] = "they need WebHDFS"
            return False
        return True

    def _greet(self, attempts: int = 3) -> None:
        """Ask for the root. A fresh NameNode's first answer can take longer than any later one, so wait more than once.

        Else a mount made while the cluster starts would do without WebHDFS for as long as it lives.
        """
        try:
            self._rest.ask("GETFILESTATUS", "/")
        except ServiceDown as error:
            if attempts == 1 or not isinstance(error.__cause__, TimeoutError):
                raise
            self._greet(attempts - 1)

    def _connect_native(self) -> NativeClient | None:
        if self._settings.transport == "webhdfs":
            self._off["native"] = "--hdfs-transport webhdfs"
            return None
        try:
            return NativeClient(
                self._target, timeout=self._settings.host_timeout, by_hostname=self._settings.use_datanode_hostname
            )
        except ServiceDown:
            raise
        except StoreError as error:  # such as key servers that it does not know, which WebHDFS asks itself
            if self._settings.transport != "auto":
                raise
            self._off["native"] = error.message
            return None

    def _connect_data_transfer(self) -> None:
        defaults = self._rest.defaults()
        why = "the NameNode does not tell its defaults" if defaults is None else refusal_of(defaults)
        if why:
            self._off["data transfer"] = why
        else:
            self.reads.transfer = DataTransfer(self._fetch_process() if self._settings.fetch_process else None)

    def _fetch_process(self) -> FetchProcess | None:
        try:
            process = FetchProcess()
        except OSError as error:
            self._off["a process that fetches"] = f"it cannot share memory: {error}"
            return None
        process.start()  # the first read should not wait for it
        return process

    def _probe_inodes(self) -> bool:
        """True if paths by inode work; a router in front of several clusters does not know them."""
        try:
            self._rest.ask("GETFILESTATUS", inode_path(self._root_status.file_id))
        except (NotFound, PermissionDenied, Unsupported) as error:
            self._off["block locations, choice of replica, renaming on a condition"] = (
                f"no paths by inode here: {error}"
            )
            return False
        return True

    def _pinning_client(self) -> PinnedClient | None:
        if self._settings.transport == "libhdfs":
            # pyarrow and a JVM, for those who ask for them only
            from stripefs.store.hdfs.libhdfs import LibhdfsClient

            return LibhdfsClient(
                self._target, timeout=self._settings.host_timeout, by_hostname=self._settings.use_datanode_hostname
            )
        return self._native

    def _why(self) -> str:
        if self._settings.transport != "auto":
            return f"--hdfs-transport {self._settings.transport}"
        return _AUTO_RULE if self.chooses_host else "WebHDFS cannot be used"

    def _look(self) -> None:
        """Raise ServiceDown while no NameNode serves."""
        if self._web:
            self._rest.ask("GETFILESTATUS", "/")
        else:
            self._need_native().stat("/")

    # Metadata.

    def _full(self, path: bytes) -> str:
        full = self._target.root + path.rstrip(b"/")
        try:
            return full.decode() or "/"
        except UnicodeDecodeError as error:
            raise NotFound(f"{os.fsdecode(path)!r}: HDFS names are UTF-8") from error

    def _stat(self, full: str, name: bytes) -> Status:
        if not self._web:
            status = self._need_native().stat(full)
            return dataclasses.replace(status, name=name)
        return status_of(self._rest.ask("GETFILESTATUS", full), name)

    def _need_native(self) -> NativeClient:
        if self._native is None:
            raise ServiceDown(f"{self.url}: neither WebHDFS nor the RPC port can be used")
        return self._native

    def _space_by_status(self) -> Space | None:
        try:
            sizes = self._rest.ask("GETSTATUS", "/")["FsStatus"]
        except Unsupported:
            return None
        return Space(int(sizes["capacity"]), int(sizes["remaining"]))
