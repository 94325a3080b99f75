"""The store seam: the calls that every store must answer, and the capabilities that it may declare missing.

All calls block and may be made from many threads at once; callers under trio run them in worker threads.
Paths are bytes, absolute within the store's root, `b"/"` being the root, without `.`, `..`, empty components or a
trailing slash. A store whose names are text answers `NotFound` for names that are not valid UTF-8.

A call either answers, or raises an error of `stripefs.errors`. Anything else that escapes is a bug in the client.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import ClassVar, Protocol, TypedDict, Unpack

from stripefs.errors import Exists, NotFound, StaleVersion, StoreError, Unsupported
from stripefs.format.blocks import Block
from stripefs.format.reserved_names import new_version, part_name
from stripefs.retry import HostHealth
from stripefs.store.types import Attributes, Buffer, Capabilities, Host, Identity, Kind, Space, Status

__all__ = [
    "Attributes",
    "Block",
    "Buffer",
    "Capabilities",
    "Creation",
    "Handle",
    "Host",
    "Identity",
    "Kind",
    "Sink",
    "Space",
    "Status",
    "Store",
    "Watch",
]


class Watch(Protocol):
    """Observer of a read: it receives progress, and can stop the read."""

    @property
    def cancelled(self) -> bool: ...

    def progress(self, received: int) -> None:
        """`received` bytes in all so far. Raises `Abandoned` when the caller gave up."""

    def unconfirmed(self) -> None:
        """The bytes that are about to be answered have to be confirmed (`Handle.confirm`)."""

    def served_by(self, host: str) -> None:
        """All bytes of this read came from `host`, which is not the one that was asked for."""

    def on_cancel(self, close: Callable[[], None] | None) -> None:
        """Register what unblocks this read (shutting its socket down); None takes it back."""


class Handle(ABC):
    """One version of a file, open for reading. Safe to use from many threads."""

    status: Status

    @abstractmethod
    def locate(self, offset: int, length: int) -> Sequence[Block]:
        """The blocks that overlap [offset, offset + length), in order, without gaps, whole (not clipped).

        Without the capability `locations` hosts are empty and boundaries follow `status.block_size` alone.
        """

    def placed(self, offset: int, length: int) -> Sequence[Block]:
        """As `locate`, for people: where the store has them, without local hosts."""
        return self.locate(offset, length)

    @abstractmethod
    def read(self, offset: int, length: int, *, host: str = "", watch: Watch | None = None) -> Buffer:
        """Exactly `length` bytes from `offset`, all of the version `status`.

        The range must lie inside the file and, for speed, inside one block. `host` is a name from `locate`; "" lets
        the client choose. Raises StaleVersion when the version is gone, HostFailed when `host` could not serve,
        ServiceDown when the metadata service could not be reached, Abandoned when `watch` was cancelled. One call
        tries once (or fails over only inside the client library) and gives up a silent host within the client's
        time-out (5 s by default).
        """

    def read_on(self, offset: int, length: int, ahead: int, *, host: str = "", watch: Watch | None = None) -> Buffer:
        """As `read`, for a reader that most likely goes on from there: it will want the next `ahead` bytes too.

        The reader will ask `host` for those of them that lie there, range by range, in order. A client may have them
        sent already, as far as it need not keep them in memory of its own.
        """
        return self.read(offset, length, host=host, watch=watch)

    def read_now(self, offset: int, length: int) -> Buffer | None:
        """As `read`, of bytes that are in this machine's memory, which takes no longer than to copy them; None where it
        might wait, or would fail. For callers that do nothing else meanwhile."""
        return None

    @property
    def fills(self) -> str:
        """The local host whose bytes `fill` brings, "" where it brings none now."""
        return ""

    def can_fill(self, offset: int, length: int) -> bool:
        """True where `fill` can bring these bytes of the file, as things are."""
        return False

    def fill(self, offset: int, into: memoryview) -> bool:
        """Fill `into` from `offset` on, all but its ends without a copy: it begins as far behind where a page begins as
        `offset` does. False where some of it is damaged, or not here any more: then `into` holds anything."""
        return False

    def read_unconfirmed(self, offset: int, length: int, ahead: int, *, host: str, watch: Watch) -> Buffer:
        """As `read_on`, but the bytes may be of another version if `watch` learns so: then they may be shown only when
        a `confirm` that began after this has answered."""
        return self.read_on(offset, length, ahead, host=host, watch=watch)

    def confirm(self) -> None:  # noqa: B027  # most clients answer no bytes that have to be confirmed
        """Return if all that came before this call is of the version. Raises StaleVersion, and ServiceDown where the
        metadata service could not be asked."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the version. Reads under way may fail. Never raises."""


class Sink(ABC):
    """A new file being written from its start, in order, by one thread at a time.

    Until `close` answers nobody may rely on what stands at the path: a store that shows the file before shows it short.
    After an error of `write` or `close` the file is lost: `abort` it and write it anew.
    """

    @abstractmethod
    def write(self, data: Buffer) -> None:
        """All of `data` goes behind what was written; it may be reused once this returns.

        Raises HostFailed when a data host failed, else a StoreError: QuotaExceeded, NoSpace, ServiceDown…
        """

    @abstractmethod
    def close(self) -> Status:
        """The file is complete: every byte acknowledged by every replica's host. Answers its status."""

    @abstractmethod
    def abort(self) -> None:
        """Give up the file; anything at its path is removed where that is possible now. Never raises.

        Does nothing after a `close` that answered.
        """

    def complete(self, pieces: Iterable[Buffer]) -> Status:
        """Write `pieces` and close; where that fails, abort. Answers and raises as these do."""
        try:
            for piece in pieces:
                self.write(piece)
            return self.close()
        except BaseException:
            self.abort()
            raise


class Creation(TypedDict, total=False):
    """`host`: a name of `Store.hosts()` that gets every block's first replica (capability `place`); "" lets the store
    choose. block_size in bytes and replication: 0 means the store's own. length: bytes that will be written, where that
    is known. private: only stripefs reads the file, and no tool compares its checksum with that of a copy, so that the
    store may choose its checksums."""

    host: str
    block_size: int
    replication: int
    length: int | None
    private: bool


class Store(ABC):
    """A place that keeps files. `url` is what the user gave, without secrets."""

    url: str
    capabilities: Capabilities
    _rename_keeps_time: ClassVar[bool] = True
    """False where a rename copies: the file has another modification time then, and its length alone is compared."""
    local_hosts: frozenset[str] = frozenset()
    """Hosts of `Handle.locate` that are no burden to others, such as a disk of this machine: of a block's hosts they
    are asked alone as long as they answer."""

    @cached_property
    def health(self) -> HostHealth:
        """Health of the data hosts, for all that read and write here."""
        return HostHealth()

    @abstractmethod
    def stat(self, path: bytes) -> Status:
        """The entry at `path`, links not followed. Raises NotFound, NotADirectory, PermissionDenied, ServiceDown."""

    @abstractmethod
    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        """The entries of a directory in batches, in byte order of their names, those greater than `after` only.

        The first batch comes without loading the whole directory where the store can page. Entries that vanish
        meanwhile may be missing; none comes twice. Raises Unsupported without the capability `listing`.
        """

    @abstractmethod
    def open(self, path: bytes, expect: Identity | None = None) -> Handle:
        """Open the file at `path`; StaleVersion when `expect` is given and is not its identity. IsADirectory."""

    def open_checked(self, path: bytes, length: int) -> Handle:
        """Open a file of `length` bytes whose reader checks every byte against sums that it trusts.

        So a store need not make sure which version stands there: its status may hold the length alone, and what `open`
        raises may come from the handle instead.
        """
        return self.open(path)

    def get(self, path: bytes) -> Buffer:
        """All of a file, of one version: for documents, in as few round trips as the store allows.

        Raises what `open` and `Handle.read` raise.
        """
        handle = self.open(path)
        try:
            return handle.read(0, handle.status.length) if handle.status.length else b""
        finally:
            handle.close()

    def read_small(self, path: bytes, length: int) -> Buffer:
        """All of a file of at most `length` bytes, unconfirmed: for documents that check themselves, of any version.

        Raises what `get` raises, StaleVersion where the file is longer.
        """
        data = self.get(path)
        if len(data) > length:
            raise StaleVersion(f"{path!r} has {len(data)} bytes, more than the {length} that were expected")
        return data

    def read_small_files(self, paths: Sequence[bytes], length: int) -> list[Buffer | StoreError]:
        """`read_small` of each of `paths`, one after the other: the bytes, or the error that it raises, for each.

        A store may save here what each call by itself would cost.
        """
        answers: list[Buffer | StoreError] = []
        for path in paths:
            try:
                answers.append(self.read_small(path, length))
            except StoreError as error:
                answers.append(error)
        return answers

    def put(self, path: bytes, data: Iterable[Buffer], *, replace: bool = False, parents: bool = True) -> Status | None:
        """Make a file of these pieces, whole or not at all. `parents`: directories above it that are missing are made;
        else NotFound is raised where they are.

        Answers the status of the new file where that is known without asking for it, else None. Raises Exists where
        something is at `path` already, unless it is to be replaced, which is atomic.
        """
        raise Unsupported(f"{self.url} cannot be written to")

    def put_document(self, path: bytes, data: bytes) -> Status | None:
        """Make a file that says `data` to `get_document`, for documents that many files have for a moment each, such as
        locks. Its bytes may lie elsewhere than in the file. A directory has to be there.

        Answers, and raises, what `put` does.
        """
        return self.put(path, [data], parents=False)

    def get_document(self, path: bytes) -> Buffer:
        """The data of a file that `put_document` or `put` has made. Raises what `get` raises."""
        return self.get(path)

    def move_document(self, source: bytes, target: bytes, seen: Identity, data: bytes) -> None:
        """The file that was `seen` at `source`, of `put_document`, says `data` and is at `target`, with that identity.

        Raises StaleVersion where it is not there any more, Exists where something else is at `target`: it may say
        `data` then where it is. Raises Unsupported where its document is in its bytes.
        """
        raise Unsupported(f"{self.url} has no documents that can be moved")

    def remove(self, path: bytes) -> None:
        """Remove a file. Raises NotFound, IsADirectory."""
        raise Unsupported(f"{self.url} cannot be written to")

    def create(self, path: bytes, **how: Unpack[Creation]) -> Sink:
        """A new file. Raises Exists where something is, NotFound where the directory is missing.

        Errors of these may also come from the sink's first `write` or from its `close`.
        """
        raise Unsupported(f"{self.url} cannot be written to")

    def mkdir(self, path: bytes, mode: int = 0o755) -> None:
        """Make a directory with exactly these permissions (no umask), where the store keeps any.

        Raises Exists, NotFound where the one above is missing, NotADirectory. Transient says that nothing was made and
        nothing will be, so a client that asks again and gets Exists has not made it.
        """
        raise Unsupported(f"{self.url} cannot be written to")

    def rmdir(self, path: bytes) -> None:
        """Remove an empty directory. Raises NotEmpty, NotFound, NotADirectory."""
        raise Unsupported(f"{self.url} cannot be written to")

    def rename(self, source: bytes, target: bytes, *, replace: bool = False) -> None:
        """Move a file or a directory to another name, atomically: everyone sees one or the other.

        Raises NotFound, Exists where something is at `target` and is not to be replaced; with `replace` IsADirectory
        (a file onto a directory), NotADirectory (a directory onto a file) and NotEmpty, as rename(2).
        """
        raise Unsupported(f"{self.url} cannot be written to")

    def compare_and_rename(self, source: bytes, target: bytes, seen: Identity) -> None:
        """As `rename` of a file over the file at `target`, if that is the one that was `seen` there.

        Raises StaleVersion where it is another one by now, or none, and what `rename` raises. Without the capability
        `compare` the file is moved away, compared, and put back where it is another one; so for a moment nothing is
        there, and what comes there meanwhile stays, also in place of the other one.
        """
        aside = self._moved_aside(target, seen)
        try:
            self.rename(source, target)
        except Exists:
            raise _stale(target) from None
        except StoreError:
            self._put_back(aside, target)
            raise
        self.remove(aside)

    def compare_and_remove(self, path: bytes, seen: Identity) -> None:
        """As `remove` of the file at `path`, if that is the one that was `seen` there. Else as `compare_and_rename`."""
        self.remove(self._moved_aside(path, seen))

    def _moved_aside(self, path: bytes, seen: Identity) -> bytes:
        folder, _, name = path.rpartition(b"/")
        aside = folder + b"/" + part_name(name, new_version(), 0)
        try:
            if not self._rename_keeps_time and self.stat(path).identity != seen:
                raise _stale(path)
            self.rename(path, aside)
            found = self.stat(aside).identity
        except NotFound:
            raise _stale(path) from None
        if found == seen or (not self._rename_keeps_time and found.length == seen.length):
            return aside
        self._put_back(aside, path)
        raise _stale(path)

    def _put_back(self, aside: bytes, path: bytes) -> None:
        try:
            self.rename(aside, path)
        except Exists:
            self.remove(aside)

    def set_attributes(self, path: bytes, attributes: Attributes) -> None:
        """Change what is given of a file's or directory's attributes.

        Raises NotFound, PermissionDenied, and Unsupported for a replication without that capability.
        """
        raise Unsupported(f"{self.url} keeps no attributes that could be set")

    def concat(self, target: bytes, sources: Sequence[bytes]) -> None:
        """The bytes of `sources`, in order, go behind those of `target`, without being copied; the sources vanish.

        All are complete files of one directory. HDFS wants sources that are not empty and whose block size is at most
        the target's. A reader sees the target before or after. Raises NotFound, Unsupported.
        """
        raise Unsupported(f"{self.url} cannot join files")

    def readlink(self, path: bytes) -> bytes:
        raise Unsupported(f"{self.url} has no symbolic links")

    def refused_name(self, name: bytes) -> str:
        """The reason for which nothing can have this name (one component of a path) here, "" for none. Asks nobody."""
        return ""

    def has_quota(self, path: bytes) -> bool:
        """True if a directory has a quota of its own, which binds what lies below it and nothing else."""
        return False

    def space(self) -> Space | None:
        """Capacity of the store, None where it has no such notion."""
        return None

    def hosts(self) -> Sequence[Host]:
        """The data hosts known now; empty without the capability `locations`."""
        return ()

    def describe(self) -> dict[str, str]:
        """Facts for `status` and `probe`: which transport and why, what is off, addresses."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Release connections. Never raises."""


def _stale(path: bytes) -> StaleVersion:
    return StaleVersion(f"{path!r} was replaced, changed or removed")
