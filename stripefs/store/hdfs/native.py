"""hdfs-native behind our errors: metadata by RPC, and files whose blocks are pinned when they are opened.

The library needs help from us: it panics past the end of a file (callers clamp), tries a dead NameNode for
minutes (so we look first whether one answers), asks the NameNode before a client's first read (so we make one early),
knows no file ids and no locations, and picks replicas by itself. A pinned file keeps the block list of its opening;
DataNodes serve a block even when it was truncated and appended to meanwhile (seen on Hadoop 3.4.2), so pinned bytes
need the same confirmation as any.

Its asynchronous client does not make many small reads cheaper: 10,000 files took 3.8 to 4.7 s with 8 to 64 at once,
2.3 to 3.1 s on as many threads (2 cores, 8 DataNodes on the same machine), and one dropped as a call ended hung
for good, since it waits for its own threads while it keeps them from the interpreter.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from hdfs_native import Client, FileReader, WriteOptions

from stripefs.errors import (
    Abandoned,
    Exists,
    HostFailed,
    IsADirectory,
    NotADirectory,
    NotFound,
    ServiceDown,
    StaleVersion,
    StoreError,
)
from stripefs.executor import Lane
from stripefs.format.manifest import MANIFEST_BLOCK_SIZE
from stripefs.retry import RetryPolicy, retry
from stripefs.store.base import Buffer, Kind, Status, Watch
from stripefs.store.hdfs.connection import check_rpc
from stripefs.store.hdfs.hadoop_conf import Target
from stripefs.store.hdfs.namenode_failover import first_serving
from stripefs.store.hdfs.native_workarounds import BlockChecker, ClientArguments, claim_user
from stripefs.store.hdfs.wire import remote_error, temporary_path

__all__ = ["NativeClient", "PinnedClient", "PinnedFile", "translate"]

_T = TypeVar("_T")

_PAGE = 1000  # entries of one batch; the NameNode's own page (dfs.ls.limit)
_TRUSTED = 1.0  # seconds for which a NameNode that answered is taken to be there still
_SMALL = 16 << 20  # longest document that is read in one piece
_WARM_UPS = 3  # files whose DataNodes may be down before we stop trying
_PUT_AGAIN = RetryPolicy(tries=7, first=0.1, longest=3.0, errors=(RuntimeError,))
"""The library gives a file up when the NameNode has not heard of its last block yet; 6 s in all."""
_WARM_UP = 0.5  # seconds for which an open waits for that
_NO_REPLICA = 'DataTransferError("All DataNodes failed'
_ADDRESS = re.compile(r'ip_addr: \\?"([^"\\]+)')
_RPC_ERROR = re.compile(r'RPCError\("([^"]+)", "((?:[^"\\]|\\.)*)"')


class PinnedFile(Protocol):
    """An open file whose block list does not change. Safe to use from many threads."""

    def read(self, offset: int, length: int, watch: Watch | None) -> Buffer:
        """Bytes inside the file. Raises HostFailed, Corrupt, Abandoned."""


class PinnedClient(Protocol):
    """A data path that picks replicas by itself."""

    name: str

    def open(self, path: str, length: int) -> PinnedFile:
        """Pin the file of `length` bytes at the HDFS path. Raises StaleVersion when it is longer."""


class NativeClient:
    """One hdfs-native client. Raises ServiceDown on creation when no NameNode's RPC port answers."""

    name = "native"

    def __init__(self, target: Target, *, timeout: float, by_hostname: bool) -> None:
        self._addresses = [namenode.rpc for namenode in target.namenodes]
        self._timeout = timeout
        self._lane = Lane("namenode", _CALLS_AT_ONCE)
        self._answered = float("-inf")
        self._warming = _WARM_UPS
        self.look()
        self.close = claim_user(target.user, self)
        """To be called when nothing is asked of it any more; a second call does nothing."""
        connection: ClientArguments = (
            f"hdfs://{target.authority}",
            {
                "dfs.client.socket-timeout": str(int(timeout * 1000)),
                "dfs.client.use.datanode.hostname": str(by_hostname).lower(),
                "dfs.client.failover.max.attempts": "2",
                "dfs.client.failover.sleep.max.millis": "1000",
            },
            target.conf_dir or None,
        )
        self._checker = BlockChecker(connection)
        try:
            self._client = Client(*connection)
        except (OSError, RuntimeError, ValueError) as error:
            self.close()
            raise translate(error, f"hdfs://{target.authority}") from error

    def stat(self, path: str) -> Status:
        """The entry at an HDFS path, without file id."""
        return _status(self.ask(lambda client: client.get_file_info(path), path))

    def listing(self, path: str) -> Iterator[Sequence[Status]]:
        """The entries of a directory in the NameNode's order, in batches."""
        entries = self.ask(lambda client: client.list_status(path), path)
        while page := self.ask(lambda _: list(itertools.islice(entries, _PAGE)), path):
            if page[0].path.rstrip("/") == path.rstrip("/"):
                raise NotADirectory(f"{path} is a file")
            yield [_status(info) for info in page]

    def open(self, path: str, length: int) -> PinnedFile:
        """See `PinnedClient.open`. Takes 1.2 ms."""
        reader = self.ask(lambda client: client.read(path), path)
        if len(reader) > length:
            raise StaleVersion(f"{path} has {len(reader)} bytes by now")
        if self._warming and len(reader):
            self._warm_up(reader, path)
        return _NativeFile(reader, path, self._checker, self._timeout)

    def get(self, path: str) -> bytes | None:
        """All of a small file, of one version; None where it is too long or does not stay the same for as long.

        Three questions and one read take 2 ms where opening a handle, reading and confirming by WebHDFS takes 25 (2
        busy cores). The file is looked at before and after, since a pinned block may change, as the module says.
        """
        before = self.stat(path)
        if before.kind is Kind.DIRECTORY:
            raise IsADirectory(f"{path} is a directory")
        if before.length > _SMALL:
            return None
        reader = self.ask(lambda client: client.read(path), path)
        data = bytes(_NativeFile(reader, path).read(0, len(reader), None)) if len(reader) else b""
        after = self.stat(path)
        same = (before.length, before.mtime_ns) == (after.length, after.mtime_ns)
        return data if same and len(data) == before.length else None

    def read_small_files(self, paths: Sequence[str], length: int) -> list[Buffer | StoreError]:
        """See `Store.read_small_files`: one thread reads all; another goes on after a read that takes too long."""
        answers: list[Buffer | StoreError] = []
        while len(answers) < len(paths):
            answers += self.read_some_small(paths[len(answers) :], length, self._timeout)
        return answers

    def read_some_small(self, paths: Sequence[str], length: int, patience: float) -> list[Buffer | StoreError]:
        """Answers about the first of `paths`, at least one: up to that which took longer than `patience` seconds."""
        try:
            self.look()
        except ServiceDown as error:
            return [error] * len(paths)
        reads = _SmallReads(self._client, paths, length)
        answers: list[Buffer | StoreError]
        try:
            self._lane.call(f"NameNode of {paths[0]}", reads.make, patience)
            self._answered = time.monotonic()
            answers = reads.answers
        except ServiceDown as error:
            answers = [*reads.give_up(), error]
        if isinstance(answers[-1], ServiceDown):
            self._answered = float("-inf")
        return answers

    def put(self, path: str, data: Iterable[Buffer], *, replace: bool) -> None:
        """See `Store.put`: written under a hidden name beside `path`, then renamed. Holds all of `data` in memory."""
        pieces = [bytes(piece) for piece in data]

        def attempt() -> None:
            temporary = temporary_path(path)
            self.look()
            try:
                self._write(temporary, pieces)
                self._client.rename(temporary, path, overwrite=replace)
            except BaseException:
                # A process that dies here leaves a hidden file; one that fails does not, unless the NameNode failed.
                with contextlib.suppress(OSError, RuntimeError):
                    self._client.delete(temporary)
                raise

        try:
            retry(attempt, _PUT_AGAIN)
        except (OSError, RuntimeError, ValueError) as error:
            raise translate(error, path) from error

    def create_empty(self, path: str) -> None:
        """An empty file, where nothing is. Raises NotFound where the directory is missing."""
        self.ask(lambda client: client.create(path, WriteOptions(create_parent=False)).close(), path)

    def _write(self, path: str, pieces: Sequence[bytes]) -> None:
        writer = self._client.create(path, WriteOptions(create_parent=True))
        for piece in pieces:
            writer.write(piece)
        writer.close()

    def make_directory(self, path: str) -> None:
        """With all directories above it; one that is there already is left as it is."""
        self.ask(lambda client: client.mkdirs(path, create_parent=True), path)

    def ask(self, call: Callable[[Client], _T], where: str) -> _T:
        """The answer of `call`, which asks the NameNode through the client. ServiceDown when that is away or silent."""
        self.look()
        try:
            answer = self._lane.call(f"NameNode of {where}", lambda: call(self._client), self._timeout)
        except ServiceDown:
            self._answered = float("-inf")
            raise
        except (OSError, RuntimeError, ValueError) as error:
            raise translate(error, where) from error
        self._answered = time.monotonic()
        return answer

    def _warm_up(self, reader: FileReader, path: str) -> None:
        """The first read of a client asks the NameNode how DataNodes want to be talked to: ask while it is there.

        In vain when another client of this process read from the same DataNode less than 3 s ago: hdfs-native shares
        its connections, and only a new one makes it ask. A mount's worker has one client.
        """
        self._warming -= 1

        def warm() -> None:
            reader.read_range(0, 1)
            self._warming = 0

        try:
            self._lane.call(path, warm, min(_WARM_UP, self._timeout))
        except (OSError, RuntimeError, ServiceDown):
            return  # this file's DataNodes cannot be reached: the next file's may

    def look(self) -> None:
        """ServiceDown when no NameNode answers: the library would try for a minute and more."""
        if time.monotonic() - self._answered < _TRUSTED:
            return
        first_serving(self._addresses, 0, lambda address: check_rpc(address, self._timeout))


_CALLS_AT_ONCE = 64
"""Calls to the NameNodes by one client."""


class _NativeFile:
    """checker: examines reads that fail sooner than a host counts as silent, after `timeout` seconds."""

    def __init__(
        self, reader: FileReader, path: str, checker: BlockChecker | None = None, timeout: float = 0.0
    ) -> None:
        self._reader = reader
        self._path = path
        self._checker = checker
        self._timeout = timeout

    def read(self, offset: int, length: int, watch: Watch | None) -> Buffer:
        if watch is not None and watch.cancelled:
            raise Abandoned("read was cancelled before it began")
        if offset + length > len(self._reader):
            # Shorter than the NameNode says: hdfs-native does not see what a writer has flushed of the last block.
            raise HostFailed(f"{self._path} is still being written", hint="its end can be read once it is closed")
        began = time.monotonic()
        try:
            data: bytes = self._reader.read_range(offset, length)
        except (OSError, RuntimeError) as error:
            reason = _first_line(error)
            stalled = "timed out" in reason.lower()
            if reason.startswith(_NO_REPLICA) and self._checker and time.monotonic() - began < self._timeout:
                corrupt = self._checker.check(self._path, offset, length)
                if corrupt is not None:
                    raise corrupt from error
            raise HostFailed(f"hdfs-native: {_brief(reason)}", stalled=stalled) from error
        if len(data) != length:
            raise HostFailed(f"hdfs-native answered {len(data)} bytes where {length} were asked for")
        if watch is not None:
            watch.progress(length)
        return data


class _SmallReads:
    """Reads of one file of at most `length` bytes after the other, up to one for which the NameNode cannot answer."""

    def __init__(self, client: Client, paths: Sequence[str], length: int) -> None:
        self.answers: list[Buffer | StoreError] = []
        self._client = client
        self._paths = paths
        self._length = length
        self._over = False

    def make(self) -> None:
        for path in self._paths:
            answer = self._read_one(path)
            if self._over:
                return
            self.answers.append(answer)
            if isinstance(answer, ServiceDown):
                return

    def give_up(self) -> list[Buffer | StoreError]:
        """The answers so far, while `make` may be under way still; it goes no further than to its next answer."""
        self._over = True
        return list(self.answers)

    def _read_one(self, path: str) -> Buffer | StoreError:
        try:
            reader = self._client.read(path)
            length = len(reader)
            if length > self._length:
                raise StaleVersion(f"{path} has {length} bytes, more than the {self._length} that were expected")
            return _NativeFile(reader, path).read(0, length, None) if length else b""
        except StoreError as error:
            return error
        except (OSError, RuntimeError, ValueError) as error:
            failure = translate(error, path)
            failure.__cause__ = error
            return failure


def _status(info: Any) -> Status:
    return Status(
        name=info.path.rpartition("/")[2].encode(),
        kind=Kind.DIRECTORY if info.isdir else Kind.FILE,
        length=info.length,
        mtime_ns=info.modification_time * 1_000_000,
        atime_ns=info.access_time * 1_000_000,
        mode=info.permission & 0o7777,
        owner=info.owner,
        group=info.group,
        block_size=info.blocksize or 0,
        replication=info.replication or 0,
        marked=info.blocksize == MANIFEST_BLOCK_SIZE,
    )


def translate(error: Exception, where: str) -> StoreError:
    """Our error for what hdfs-native raised about `where` (it tells RPC errors apart in its messages only)."""
    text = str(error)
    match = _RPC_ERROR.search(text)
    if match:
        return remote_error(match[1], match[2].replace("\\n", "\n").replace('\\"', '"'), where)
    if isinstance(error, FileNotFoundError):
        return IsADirectory(f"{where} is a directory") if "not a file" in text else NotFound(f"{where} does not exist")
    if isinstance(error, FileExistsError):
        return Exists(f"{where} exists already")
    if isinstance(error, OSError):
        return ServiceDown(f"{where}: the NameNode cannot be reached: {_first_line(error)}")
    hint = "give --hdfs-transport webhdfs, which needs no keys here" if "KMS" in text else ""
    return StoreError(f"{where}: hdfs-native: {_first_line(error)}", hint=hint)


def _brief(reason: str) -> str:
    """Without what the library prints of each DataNode, but for their addresses."""
    if not reason.startswith(_NO_REPLICA):
        return reason
    return f"all DataNodes failed: {', '.join(_ADDRESS.findall(reason))}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].partition("\\n")[0] or type(error).__name__
