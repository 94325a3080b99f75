"""Where the bytes of one file go: a local file, or a store, which writes it as a mount would.

A local file is compared before it gets its name. What a store has can be read once it is published, not before: it is
compared then, and taken away again if it is not what was read.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import NamedTuple, Protocol

from stripefs.api import Entry, ReadFile
from stripefs.api.place import Place
from stripefs.copy.partial import STEP, Partial, Tell, differs_at
from stripefs.errors import StaleVersion, StoreError

__all__ = ["Looks", "Output", "open_output"]

_IN_VAIN = (errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ENOENT)
"""Why nothing is kept: what fills a disk keeps the files behind it, and others, from going on, and a version of the
source that is gone does not come back."""


class Looks(NamedTuple):
    """What a copy has beside its bytes: permission bits; when it was changed last, in nanoseconds since 1970, None for
    when it was copied."""

    mode: int
    mtime_ns: int | None = None


class Output(Protocol):
    """done: bytes that are there from an earlier try. plain: whether the store keeps neither modes nor times."""

    done: int
    plain: bool

    def write(self, data: memoryview, sums: bytes) -> None:
        """`data`, whose checksums (`check_sums`) are `sums`, goes behind what is there."""

    def publish(self, tell: Tell | None) -> None:
        """It is the file from now on. tell: compare what is stored with the checksums, and say so.

        Raises what keeps it from being the file; of what is not right nothing stays under the name.
        """

    def give_up(self, error: BaseException) -> str:
        """It will not be the file, for `error`: where what has come is kept to be gone on with, "" for nowhere. Raises
        nothing."""


class Spoiled(StoreError):
    """What is stored is not what was written."""


def open_output(target: Place, length: int, origin: str, looks: Looks) -> Output:
    """For a file of `length` bytes; `origin` says which bytes they are. Raises OSError, StoreError."""
    return _LocalOutput(target, length, origin, looks) if target.local else _StoreOutput(target, looks)


class _LocalOutput:
    plain = False

    def __init__(self, target: Place, length: int, origin: str, looks: Looks) -> None:
        self._looks = looks
        self._partial = Partial(target.path, length, os.fsencode(origin))
        self.done = self._partial.done

    def write(self, data: memoryview, sums: bytes) -> None:
        self._partial.write(data, sums)

    def publish(self, tell: Tell | None) -> None:
        if (differs := self._partial.publish(*self._looks, tell)) is not None:
            raise Spoiled(f"what the disk has is not what was written, from byte {differs} on")

    def give_up(self, error: BaseException) -> str:
        with contextlib.suppress(OSError):
            if isinstance(error, Spoiled) or getattr(error, "errno", None) in _IN_VAIN:
                self._partial.drop()
            elif self._partial.keep():
                return os.fsdecode(self._partial.path)
        return ""


class _StoreOutput:
    def __init__(self, target: Place, looks: Looks) -> None:
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

    def _give(self, looks: Looks) -> bool:
        """Whether the store keeps what is given here."""
        try:
            self._file.set_attributes(mode=looks.mode, mtime_ns=looks.mtime_ns)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            return False
        return True

    def _difference(self, file: ReadFile, tell: Tell) -> int | None:
        """Where what is stored begins to differ from what was written."""
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
