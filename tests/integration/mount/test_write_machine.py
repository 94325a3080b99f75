"""A mount that is written to and a plain directory, side by side: the same calls, the same answers, the same bytes.

Only permitted differences are left out. A file that is being written shows others its last complete version, and has
one writer: so other descriptors stay away from a path until its writer closed it. Sizes lie around the limits that
matter: nothing, a page, a chunk of staging, and a size large enough for parts.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.support.write_programs.place import opened, write_all
from tests.support.written_mounts import hidden, unreferenced, writable
from tests.tools.mounts import MIB, Mounts, drop_cache

T = TypeVar("T")

MATERIAL = random.Random(5).randbytes(12 * MIB)

PATHS = ("a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "f")
"""Few names, so that calls meet: files where directories were, and the other way."""

paths = st.sampled_from(PATHS)
sizes = st.one_of(
    st.integers(0, 10),
    st.sampled_from((4095, 4096, 65_536, 100_000, MIB, MIB + 1)),
    st.sampled_from((8 * MIB - 1, 8 * MIB, 9 * MIB + 7)),
)
offsets = st.one_of(st.integers(0, 10), st.sampled_from((4096, 65_535, 200_000, 2 * MIB, 9 * MIB)))


@st.composite
def data(draw: st.DrawFn) -> bytes:
    size = draw(sizes)
    return MATERIAL[(start := draw(st.integers(0, 2 * MIB))) : start + size]


@dataclass
class Writer:
    """One file open for writing on both sides. path None: it was unlinked or replaced."""

    path: str | None
    real: int
    shown: int


class Machine(RuleBasedStateMachine):
    real_root: ClassVar[Path]
    shown_root: ClassVar[Path]
    number: ClassVar[Iterator[int]] = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        name = f"example{next(self.number)}"
        self.real, self.shown = self.real_root / name, self.shown_root / name
        self.writers: list[Writer] = []
        self.differs = False
        self.both(lambda root: os.mkdir(root))

    # Both sides

    def both(self, call: Callable[[Path], T]) -> T | None:
        """`call` on both, with one answer: its value or its error."""
        real, shown = (self._outcome(lambda: call(root)) for root in (self.real, self.shown))  # noqa: B023
        return self._one(real, shown)

    def done(self, call: Callable[[Path], object]) -> bool:
        """True if `call` succeeds, on both."""

        def succeeds(root: Path) -> bool:
            call(root)
            return True

        return bool(self.both(succeeds))

    def each(self, writer: Writer, call: Callable[[int], T]) -> T | None:
        real, shown = (self._outcome(lambda: call(fd)) for fd in (writer.real, writer.shown))  # noqa: B023
        return self._one(real, shown)

    def _one(self, real: T | _Errno, shown: T | _Errno) -> T | None:
        if shown != real:
            self.differs = True
            raise AssertionError(f"{shown!r:.300} where a plain directory answers {real!r:.300}")
        return None if isinstance(real, _Errno) else real

    @staticmethod
    def _outcome(call: Callable[[], T]) -> T | _Errno:
        try:
            return call()
        except OSError as error:
            return _Errno(error.errno or 0)

    def busy(self, path: str) -> bool:
        return any(writer.path == path for writer in self.writers)

    # Whole files

    @rule(path=paths, pieces=st.lists(data(), max_size=3), exclusive=st.booleans())
    def write(self, path: str, pieces: list[bytes], exclusive: bool) -> None:
        if not self.busy(path):
            flags = os.O_WRONLY | os.O_CREAT | (os.O_EXCL if exclusive else os.O_TRUNC)
            self.both(lambda root: _written(root / path, flags, pieces))
            self.look(path)

    @rule(path=paths, more=data())
    def append(self, path: str, more: bytes) -> None:
        if not self.busy(path):
            self.both(lambda root: _written(root / path, os.O_WRONLY | os.O_APPEND, [more]))
            self.look(path)

    @rule(path=paths, length=offsets)
    def truncate(self, path: str, length: int) -> None:
        if not self.busy(path):
            self.both(lambda root: os.truncate(root / path, length))
            self.look(path)

    @rule(path=paths)
    def look(self, path: str) -> None:
        if not self.busy(path):
            with contextlib.suppress(OSError):
                drop_cache(self.shown / path)
            self.both(lambda root: _content(root / path))
            self.both(
                lambda root: (os.stat(root / path).st_mode, os.stat(root / path).st_size * (root / path).is_file())
            )

    # Names

    @rule(path=paths)
    def mkdir(self, path: str) -> None:
        self.both(lambda root: os.mkdir(root / path))

    @rule(path=paths)
    def rmdir(self, path: str) -> None:
        self.both(lambda root: os.rmdir(root / path))

    @rule(path=paths)
    def unlink(self, path: str) -> None:
        if self.done(lambda root: os.unlink(root / path)):
            self._gone(path)

    @rule(old=paths, new=paths)
    def rename(self, old: str, new: str) -> None:
        if self.done(lambda root: os.rename(root / old, root / new)) and old != new:
            self._gone(new)
            for writer in self.writers:
                if writer.path == old or (writer.path or "").startswith(old + "/"):
                    writer.path = new + str(writer.path)[len(old) :]
            self.look(new)

    def _gone(self, path: str) -> None:
        for writer in self.writers:
            if writer.path == path:
                writer.path = None

    @rule(path=paths, mode=st.sampled_from((0o600, 0o644, 0o755, 0o444)))
    def chmod(self, path: str, mode: int) -> None:
        if not self.busy(path):
            self.both(lambda root: os.chmod(root / path, mode))
            self.both(lambda root: os.stat(root / path).st_mode)

    @rule(path=paths, seconds=st.integers(1, 2_000_000_000))
    def utime(self, path: str, seconds: int) -> None:
        if not self.busy(path):
            self.both(lambda root: os.utime(root / path, (seconds, seconds)))
            self.both(lambda root: int(os.stat(root / path).st_mtime) if (root / path).is_file() else 0)

    # Files that stay open

    @precondition(lambda self: len(self.writers) < 3)
    @rule(
        path=paths,
        access=st.sampled_from((os.O_WRONLY, os.O_RDWR)),
        more=st.sampled_from((0, os.O_CREAT, os.O_CREAT | os.O_TRUNC, os.O_CREAT | os.O_EXCL, os.O_TRUNC)),
    )
    def open(self, path: str, access: int, more: int) -> None:
        if self.busy(path):
            return
        descriptors: list[int] = []
        self.both(lambda root: descriptors.append(os.open(root / path, access | more, 0o640)))
        if descriptors:
            self.writers.append(Writer(path, *descriptors))

    @precondition(lambda self: self.writers)
    @rule(pick=st.integers(0, 2), piece=data())
    def continue_writing(self, pick: int, piece: bytes) -> None:
        writer = self.writers[pick % len(self.writers)]
        self.each(writer, lambda fd: write_all(fd, piece))
        self.each(writer, lambda fd: os.fstat(fd).st_size)

    @precondition(lambda self: self.writers)
    @rule(pick=st.integers(0, 2), piece=data(), offset=offsets)
    def write_somewhere(self, pick: int, piece: bytes, offset: int) -> None:
        writer = self.writers[pick % len(self.writers)]
        self.each(writer, lambda fd: os.pwrite(fd, piece, offset))
        self.each(writer, lambda fd: os.fstat(fd).st_size)

    @precondition(lambda self: self.writers)
    @rule(pick=st.integers(0, 2), length=offsets)
    def cut(self, pick: int, length: int) -> None:
        writer = self.writers[pick % len(self.writers)]
        self.each(writer, lambda fd: os.ftruncate(fd, length))
        self.each(writer, lambda fd: os.fstat(fd).st_size)

    @precondition(lambda self: self.writers)
    @rule(pick=st.integers(0, 2), offset=offsets, size=sizes)
    def read_what_is_written(self, pick: int, offset: int, size: int) -> None:
        self.each(
            self.writers[pick % len(self.writers)], lambda fd: os.pread(fd, size, offset)
        )  # EBADF where write-only

    @precondition(lambda self: self.writers)
    @rule(pick=st.integers(0, 2), duplicate=st.booleans())
    def sync(self, pick: int, duplicate: bool) -> None:
        """fsync, or what a duplicate's close asks for."""
        self.each(
            self.writers[pick % len(self.writers)], lambda fd: os.close(os.dup(fd)) if duplicate else os.fsync(fd)
        )

    @precondition(lambda self: self.writers)
    @rule(pick=st.integers(0, 2))
    def close(self, pick: int) -> None:
        writer = self.writers.pop(pick % len(self.writers))
        self.each(writer, os.close)
        if writer.path is not None:
            self.look(writer.path)

    # Always, and at the end

    @invariant()
    def the_same_names(self) -> None:
        self.both(lambda root: sorted(os.path.relpath(path, root) for path in _walk(root)))

    @invariant()
    def the_file_of_a_writer_is_the_one_at_its_path(self) -> None:
        """For those who compare inode numbers, before and after publications."""
        for writer in self.writers:
            if writer.path is not None:
                assert os.fstat(writer.shown).st_ino == os.stat(self.shown / writer.path).st_ino

    def teardown(self) -> None:
        try:
            if self.differs:
                return  # the difference is to be reported, and not its consequences
            while self.writers:
                self.close(0)
            for path in _walk(self.real):
                self.look(os.path.relpath(path, self.real))
            for root in (self.real, self.shown):
                shutil.rmtree(root)
        finally:
            for writer in self.writers:
                for descriptor in (writer.real, writer.shown):
                    with contextlib.suppress(OSError):
                        os.close(descriptor)


class _Errno(int):
    def __repr__(self) -> str:
        return errno.errorcode.get(self, str(int(self)))


def _written(path: Path, flags: int, pieces: list[bytes]) -> None:
    with opened(path, flags, 0o640) as descriptor:
        for piece in pieces:
            write_all(descriptor, piece)


def _content(path: Path) -> tuple[int, int]:
    """Length and hash: what differs is named by the steps, not by megabytes."""
    whole = path.read_bytes()
    return len(whole), hash(whole)


def _walk(root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        yield from (os.path.join(folder, name) for name in folders + files)


@pytest.mark.mount
@pytest.mark.parametrize("layout", ["concat", "striped"])
def test_like_a_plain_directory(mounts: Mounts, layout: str) -> None:
    real = mounts.folder / "real"
    real.mkdir()
    staging = mounts.folder / "staging"
    mounted = mounts.start(writable(mounts, layout=layout, unit=MIB, staging=staging)).wait_ready()

    class Here(Machine):
        real_root, shown_root = real, mounted.path

    examples = max(4, settings().max_examples // 5)
    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert mounted.stop() == 0
    assert hidden(mounts.source) == []
    assert unreferenced(mounts.source) == set()
    assert os.listdir(staging) == [".stripefs-staging"]
