"""Output of one copied file: a local file, or a store, which writes it as a mount would.

A local file is hidden beside its name while it is copied, and renamed onto the name when it is whole.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from typing import NamedTuple, Protocol

from stripefs.api import Entry, ReadFile
from stripefs.copy.tree import Place
from stripefs.errors import Busy, IsADirectory, NoSpace, StaleVersion, StoreError, Unsupported
from stripefs.format.blocks import CHECK, DIGEST, SUM, check_sums, digest_of
from stripefs.format.reserved_names import copy_name
from stripefs.osutil import try_lock
from stripefs.store.local_write import sync_directory
from stripefs.units import format_size, shown

__all__ = ["STEP", "FileMetadata", "Output", "Partial", "Spoiled", "Tell", "differs_at", "open_output"]

Tell = Callable[[int], None]
"""So many more bytes were compared. May raise, which ends it."""

STEP = 8 * CHECK
"""Bytes that are written, and compared, at once: a range of the reader."""

MARK = b"STRIPECP"
HEAD = len(MARK) + DIGEST

_LOCK_AT = (1 << 62) - 1
"""The byte that is locked: behind all that a file may have."""

_OURS = 0o600
"""Permissions of a file for its owner until it has its name: one that was killed before leaves it, to be opened
again."""

_TRIES = 10
"""Each takes another process that publishes between two system calls of ours."""


_IN_VAIN = (errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ENOENT)
"""Errors after which nothing is kept: a file that fills a disk keeps the files behind it, and others, from going on; a
version of the source that is gone does not come back."""


class FileMetadata(NamedTuple):
    """Attributes of a copy beside its bytes: permission bits; when it was changed last, in nanoseconds since 1970, None
    for when it was copied."""

    mode: int
    mtime_ns: int | None = None


class Output(Protocol):
    """done: bytes that are there, at first those of an earlier try. plain: True if it keeps neither modes nor times."""

    done: int
    plain: bool

    def write(self, data: memoryview, sums: bytes) -> None:
        """`data`, whose checksums (`check_sums`) are `sums`, goes behind what is there."""

    def publish(self, tell: Tell | None) -> None:
        """Make the copy the file. tell: compare what is stored with the checksums, and say so.

        Raises what keeps it from being the file; of what is not right nothing stays under the name.
        """

    def give_up(self, error: BaseException) -> str:
        """Leave the copy unfinished, for `error`; the path at which its bytes are kept for a later try, "" for none.
        Raises nothing."""


class Spoiled(StoreError):
    """The stored bytes are not those that were written."""


class Partial:
    """The partial copy of a file of `length` bytes that is to be at `path`; `origin` identifies its bytes.

    done: bytes that are here and right, a multiple of CHECK or all. sums: their checksums. Let go of it by `publish`,
    `keep` or `drop`. Raises OSError, Busy where another process copies to the same name, NoSpace.
    """

    plain = False

    def __init__(self, path: bytes, length: int, origin: bytes, looks: FileMetadata) -> None:
        folder, self._name = os.path.split(path)
        self._length = length
        self._looks = looks
        self._head = MARK + digest_of(origin)
        self._hidden = copy_name(self._name)
        self.path = os.path.join(folder, self._hidden)
        self.sums = bytearray()
        self.done = 0
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._file = -1
        try:
            self._ensure_replaceable()
            self._file = self._opened()
            self._resume()
            self._ensure_room()
        except BaseException:
            if self._file >= 0 and not self.done:
                self.drop()
            self._close()
            raise

    # -- writing -----------------------------------------------------------------------------------------------------

    def write(self, data: memoryview, sums: bytes) -> None:
        """`data`, whose checksums are `sums`, goes behind what is here: whole checks, but for the file's end."""
        _write(self._file, data, self.done)
        if self._length > STEP:
            if not self.sums:
                _write(self._file, self._head, self._length)
            _write(self._file, sums, self._length + HEAD + len(self.sums))
        self.sums += sums
        self.done += len(data)

    def publish(self, tell: Tell | None) -> None:
        """Make the copy the file, durably. The bytes that are compared come from the disk, as far as the file system
        lets its pages go; where one differs the copy does not become the file.
        """
        small = self._length <= STEP
        if small:
            self._seal()  # one sync is enough
        if tell is not None:
            if not small:
                os.fdatasync(self._file)  # a resumed copy needs the data and its checksums until all is compared
            os.posix_fadvise(self._file, 0, self._length, os.POSIX_FADV_DONTNEED)
            if (differs := self._compare(tell)) is not None:
                raise Spoiled(f"what the disk has is not what was written, from byte {differs} on")
        if not small:
            self._seal()
        os.rename(self._hidden, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        mode = self._looks.mode
        if mode != mode | _OURS:
            os.fchmod(self._file, mode)
            os.fsync(self._file)
        sync_directory(self._folder)
        self._close()

    def give_up(self, error: BaseException) -> str:
        with contextlib.suppress(OSError):
            if isinstance(error, Spoiled) or getattr(error, "errno", None) in _IN_VAIN:
                self.drop()
            elif self.keep():
                return os.fsdecode(self.path)
        return ""

    def keep(self) -> bool:
        """Keep the file, to be resumed; True if it is worth it. One that is not is removed."""
        if self._length <= STEP or not self.sums:
            self.drop()
            return False
        self._close()
        return True

    def drop(self) -> None:
        """Remove it."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._hidden, dir_fd=self._folder)
        self._close()

    # -- inner workings ----------------------------------------------------------------------------------------------

    def _ensure_replaceable(self) -> None:
        """Raises IsADirectory, Unsupported for what no file may take the place of."""
        try:
            found = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectory(f"{shown(self._name)} is a directory")
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISLNK(found.st_mode):
            raise Unsupported(f"{shown(self._name)} is no regular file")

    def _opened(self) -> int:
        """The hidden file, locked. It may have been published by another process meanwhile: then again."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        for _ in range(_TRIES):
            file = os.open(self._hidden, flags, 0o600, dir_fd=self._folder)
            try:
                if not try_lock(file, _LOCK_AT):
                    raise Busy("another process copies to the same name", hint="wait until it is done")
                with contextlib.suppress(FileNotFoundError):
                    there = os.stat(self._hidden, dir_fd=self._folder, follow_symlinks=False)
                    if os.path.samestat(there, os.fstat(file)):
                        return file
            except BaseException:
                os.close(file)
                raise
            os.close(file)
        raise Busy("other processes copy to the same name", hint="wait until they are done")

    def _resume(self) -> None:
        """Find what is here and right; the rest counts for nothing."""
        if self._length > STEP and os.pread(self._file, HEAD, self._length) == self._head:
            kept = os.pread(self._file, -(-self._length // CHECK) * SUM, self._length + HEAD)
            self.sums += kept[: len(kept) // SUM * SUM]
            if (right := self._compare(lambda _size: None)) is not None:
                del self.sums[right // CHECK * SUM :]
            self.done = self._covered
        else:
            os.ftruncate(self._file, 0)

    def _ensure_room(self) -> None:
        """A copy that cannot end well does not begin, and does not take the room of others."""
        there, need = os.fstatvfs(self._file), self._length - self.done
        free = there.f_bavail * there.f_frsize
        if need > free:
            raise NoSpace(f"no room: {format_size(need)} are to come, {format_size(free)} are free")

    @property
    def _covered(self) -> int:
        """Bytes that `sums` speak of."""
        return min(self._length, len(self.sums) // SUM * CHECK)

    def _compare(self, tell: Tell) -> int | None:
        """The position at which the file differs from `sums`, as far as they reach."""
        end = self._covered
        buffer = memoryview(bytearray(min(STEP, end)))
        for at in range(0, end, STEP):
            view = buffer[: min(STEP, end - at)]
            if (differs := differs_at(self.sums, at, view[: _read(self._file, view, at)], len(view))) is not None:
                return differs
            tell(len(view))
        return None

    def _seal(self) -> None:
        """Nothing but the file is in the file, and it looks as it will, `_OURS` apart; all of that is on disk."""
        os.ftruncate(self._file, self._length)
        os.fchmod(self._file, self._looks.mode | _OURS)
        if (mtime_ns := self._looks.mtime_ns) is not None:
            os.utime(self._file, ns=(mtime_ns, mtime_ns))
        os.fsync(self._file)

    def _close(self) -> None:
        for descriptor in (self._file, self._folder):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._folder = -1


def differs_at(sums: bytes | bytearray, offset: int, data: memoryview, length: int) -> int | None:
    """The position at which `data`, which stands at `offset`, a multiple of CHECK, differs from these checksums,
    to a check's start; None for nowhere. length: the number of bytes that there should be."""
    first = offset // CHECK
    wanted = sums[first * SUM : (first + -(-length // CHECK)) * SUM]
    found = check_sums(data)
    if found == wanted:
        return None
    same = next((at for at in range(0, len(wanted), SUM) if found[at : at + SUM] != wanted[at : at + SUM]), 0)
    return offset + same // SUM * CHECK


def _write(file: int, data: memoryview | bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(file, rest, offset)
        rest, offset = rest[written:], offset + written


def _read(file: int, into: memoryview, offset: int) -> int:
    """Bytes that were there, fewer than `into` takes only at the file's end."""
    done = 0
    while done < len(into) and (more := os.preadv(file, [into[done:]], offset + done)):
        done += more
    return done


def open_output(target: Place, length: int, origin: str, looks: FileMetadata) -> Output:
    """For a file of `length` bytes; `origin` says which bytes they are. Raises OSError, StoreError."""
    return Partial(target.path, length, os.fsencode(origin), looks) if target.local else _StoreOutput(target, looks)


class _StoreOutput:
    def __init__(self, target: Place, looks: FileMetadata) -> None:
        self._target = target
        self._sums = bytearray()
        self.done = 0
        self._file = target.files.open(target.path, "wb")
        try:
            self.plain = not self._give(looks)
        except BaseException:
            self._file.discard()
            raise

    def write(self, data: memoryview, sums: bytes) -> None:
        self._file.write(data)
        self._sums += sums

    def publish(self, tell: Tell | None) -> None:
        self._file.close()
        assert self._file.status is not None
        version = Entry.of(self._file.status).version
        if tell is None:
            return
        with self._target.files.open(self._target.path) as file:
            if Entry.of(file.status).version != version:
                raise StaleVersion("somebody else has replaced it before it could be compared")
            differs = self._difference(file, tell)
        if differs is not None:
            self._take_back(version)
            raise Spoiled(f"what the store has is not what was read, from byte {differs} on; it is removed again")

    def give_up(self, error: BaseException) -> str:
        with contextlib.suppress(OSError):
            self._file.discard()
        return ""

    def _give(self, looks: FileMetadata) -> bool:
        """True if the store keeps what is given here."""
        try:
            self._file.set_attributes(mode=looks.mode, mtime_ns=looks.mtime_ns)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            return False
        return True

    def _difference(self, file: ReadFile, tell: Tell) -> int | None:
        """The position at which the stored bytes differ from the written ones."""
        buffer = memoryview(bytearray(min(STEP, file.size)))
        for at in range(0, file.size, STEP):
            view = buffer[: file.pread_into(buffer, at)]
            if (differs := differs_at(self._sums, at, view, len(view))) is not None:
                return differs
            tell(len(view))
        return None

    def _take_back(self, version: str) -> None:
        there = self._target.stat()
        if there is not None and there.version == version:
            self._target.files.remove(self._target.path)
