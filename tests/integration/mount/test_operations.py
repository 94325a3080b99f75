"""The border to the kernel, without one: every exception becomes an errno, and the right ones a log line."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from pyfuse3 import FUSEError

from stripefs.errors import NameTooLong, NotFound, PermissionDenied, ServiceDown, StaleVersion, StoreError
from stripefs.fuse.operations import TreeOperations
from stripefs.fuse.state_memory import CounterPage, make_memory


class FakeTree:
    """Answers every call with `answer`, or raises it."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.attr_timeout = 0.25
        self.posix_acl = False
        self.xattr_prefix = b""

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any) -> Any:
            if isinstance(self.answer, BaseException):
                raise self.answer
            return self.answer

        def forget(pairs: Any) -> None:
            if isinstance(self.answer, BaseException):
                raise self.answer

        return forget if name == "forget" else call


class PanicException(BaseException):
    """An exception like that of a panic in Rust."""


@pytest.fixture
def counters() -> Iterator[CounterPage]:
    descriptors = make_memory()
    yield CounterPage(descriptors[0])
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.fixture
def tree() -> FakeTree:
    return FakeTree()


@pytest.fixture
def operations(tree: FakeTree, counters: CounterPage) -> Any:
    return TreeOperations(tree, counters, lambda: None)


async def _errno(call: Any) -> int:
    with pytest.raises(FUSEError) as caught:
        await call
    return int(caught.value.errno)


@pytest.mark.parametrize(
    ("error", "number", "level"),
    [
        (NotFound("x"), errno.ENOENT, None),
        (PermissionDenied("x"), errno.EACCES, None),
        (StaleVersion("x"), errno.ESTALE, None),
        (NameTooLong("x"), errno.ENAMETOOLONG, None),
        (ServiceDown("the store is away", hint="start it"), errno.EIO, logging.WARNING),
        (StoreError("short"), errno.EIO, logging.WARNING),
        (RuntimeError("a bug"), errno.EIO, logging.ERROR),
        (OSError(errno.ENOMEM, "no memory"), errno.ENOMEM, logging.ERROR),
        (KeyError(7), errno.EIO, logging.ERROR),
        (PanicException("rust"), errno.EIO, logging.ERROR),
    ],
)
async def test_errors(
    operations: Any,
    tree: FakeTree,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
    number: int,
    level: int | None,
) -> None:
    tree.answer = error
    if number != errno.ENOENT:
        assert await _errno(operations.lookup(1, b"x", None)) == number
    for call in (
        operations.getattr(1, None),
        operations.open(1, os.O_RDONLY, None),
        operations.read(1, 0, 1),
        operations.release(1),
        operations.opendir(1, None),
        operations.readdir(1, 0, None),
        operations.releasedir(1),
        operations.readlink(1, None),
        operations.statfs(None),
        operations.getxattr(1, b"user.x", None),
        operations.listxattr(1, None),
    ):
        caplog.clear()
        assert await _errno(call) == number
        assert [record.levelno for record in caplog.records] == ([level] if level else [])
        if level == logging.WARNING:
            assert str(error) in caplog.text
        if level == logging.ERROR:
            assert "Traceback" in caplog.text


async def test_absence_is_cached_as_long_as_presence(operations: Any, tree: FakeTree) -> None:
    tree.answer = NotFound("x")
    entry = await operations.lookup(1, b"x", None)
    assert (entry.st_ino, entry.entry_timeout) == (0, 0.25)


async def test_forget_never_raises(operations: Any, tree: FakeTree, caplog: pytest.LogCaptureFixture) -> None:
    tree.answer = RuntimeError("a bug")
    await operations.forget([(5, 1)])
    assert "a bug" in caplog.text


async def test_repeated_failures_are_counted_not_repeated(
    operations: Any, tree: FakeTree, caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    tree.answer = ServiceDown("away")
    for number in range(10):
        tree.answer = ServiceDown(f"away, try {number}")
        await _errno(operations.getattr(1, None))
    await _errno(operations.opendir(1, None))
    await trio.sleep(6)
    await _errno(operations.getattr(1, None))
    assert [record.getMessage() for record in caplog.records] == [
        "getattr: away, try 0",
        "opendir: away, try 9",
        "getattr: away, try 9 (and 9 like it before)",
    ]


async def test_cancellation_passes(operations: Any, tree: FakeTree) -> None:
    class Waiting(FakeTree):
        async def getattr(self, node: int) -> None:
            await trio.sleep_forever()

    operations._tree = Waiting()
    with trio.move_on_after(0) as scope:
        await operations.getattr(1, None)
    assert scope.cancelled_caught


async def test_writing_is_refused(operations: Any, tree: FakeTree) -> None:
    tree.answer = 7
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_RDONLY | os.O_APPEND):
        assert await _errno(operations.open(1, flags, None)) == errno.EROFS
    assert await _errno(operations.write(1, 0, b"x")) == errno.EROFS
    assert await _errno(operations.mkdir(1, b"x", 0o755, None)) == errno.EROFS
    assert await _errno(operations.create(1, b"x", 0o644, os.O_WRONLY, None)) == errno.EROFS
    assert await _errno(operations.setattr(1, None, None, None, None)) == errno.EROFS
    assert not await operations.access(1, os.W_OK, None)
    assert await operations.access(1, os.R_OK | os.X_OK, None)


async def test_cached_pages_outlive_handles(operations: Any, tree: FakeTree) -> None:
    tree.answer = 7
    info = await operations.open(1, os.O_RDONLY, None)
    assert (info.fh, info.keep_cache, info.direct_io) == (7, True, False)


async def test_trusted_attributes_are_named_to_root_only(operations: Any, tree: FakeTree) -> None:
    tree.answer = [b"user.x", b"trusted.y", b"security.capability"]
    assert await operations.listxattr(1, SimpleNamespace(uid=0)) == tree.answer
    assert await operations.listxattr(1, SimpleNamespace(uid=1000)) == [b"user.x", b"security.capability"]


def test_the_tree_says_whether_its_lists_are_enforced(tree: FakeTree, counters: CounterPage) -> None:
    for wanted in (False, True):
        tree.posix_acl = wanted
        assert TreeOperations(tree, counters, lambda: None).enable_acl is wanted


async def test_names_that_no_attribute_can_have_never_reach_the_tree(operations: Any, tree: FakeTree) -> None:
    tree.xattr_prefix = b"user."
    tree.answer = b"value"
    assert await _errno(operations.getxattr(1, b"system.posix_acl_access", None)) == errno.EOPNOTSUPP
    assert await operations.getxattr(1, b"user.x", None) == b"value"
    tree.answer = None
    assert await _errno(operations.listxattr(1, SimpleNamespace(uid=0))) == errno.ENOSYS


async def test_counters(operations: Any, tree: FakeTree, counters: CounterPage) -> None:
    tree.answer = b"12345"
    await operations.read(1, 0, 5)
    tree.answer = NotFound("x")
    await _errno(operations.getattr(1, None))
    tree.answer = ServiceDown("x")
    await _errno(operations.lookup(1, b"x", None))
    assert counters.read() == {"answered": 3, "failed": 1, "read_bytes": 5, "written_bytes": 0}
