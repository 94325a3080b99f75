"""Writing through hdfs-native: files whose place the NameNode chooses, and changes where WebHDFS cannot be reached.

The library gives a file up when the NameNode has not heard of its last block's replica yet, which a busy cluster makes
it do: such an error is Transient, the file is to be written anew. It cannot let go of a file without closing it, and
closing makes it whole; so a file that is given up is removed first and let go of then.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hdfs_native import WriteOptions

from stripefs.errors import ServiceDown, StoreError, Transient, Unsupported
from stripefs.store.base import Buffer, Status
from stripefs.store.common import ConfirmedSink
from stripefs.store.hdfs.namenode_failover import Unanswered
from stripefs.store.hdfs.native import NativeClient, translate

__all__ = ["NativeNamespaceCalls", "NativeSink"]

_T = TypeVar("_T")


class NativeNamespaceCalls:
    """As `namespace.WebNamespaceCalls`, by hdfs-native's RPC."""

    def __init__(self, native: NativeClient, stat: Callable[[str], Status]) -> None:
        self._native = native
        self.stat = stat

    def make_directories(self, path: str, mode: int) -> None:
        self._change(lambda client: client.mkdirs(path, permission=mode, create_parent=True), path)

    def delete(self, path: str) -> bool:
        return bool(self._change(lambda client: client.delete(path, False), path))

    def rename(self, source: str, target: str, *, replace: bool) -> None:
        self._change(lambda client: client.rename(source, target, overwrite=replace), source)

    def set_mode(self, path: str, mode: int) -> None:
        self._change(lambda client: client.set_permission(path, mode), path)

    def set_owner(self, path: str, owner: str | None, group: str | None) -> None:
        self._change(lambda client: client.set_owner(path, owner, group), path)

    def set_times(self, path: str, mtime_ms: int | None, atime_ms: int | None) -> None:
        # HDFS's word for "leave it as it is" is -1, which the library does not take.
        now = self.stat(path)
        mtime = now.mtime_ns // 1_000_000 if mtime_ms is None else mtime_ms
        atime = now.atime_ns // 1_000_000 if atime_ms is None else atime_ms
        self._change(lambda client: client.set_times(path, mtime, atime), path)

    def set_replication(self, path: str, replicas: int) -> bool:
        return bool(self._change(lambda client: client.set_replication(path, replicas), path))

    def concat(self, target: str, sources: Sequence[str]) -> None:
        raise Unsupported("joining files needs WebHDFS: hdfs-native cannot")

    def _change(self, call: Callable[[Any], _T], where: str) -> _T:
        self._native.look()
        try:
            return self._native.ask(call, where)
        except ServiceDown as error:
            raise Unanswered(error.message, hint=error.hint) from error


class NativeSink(ConfirmedSink):
    """A new file at `path`, on DataNodes that the NameNode chooses."""

    def __init__(
        self,
        native: NativeClient,
        path: str,
        *,
        block_size: int,
        replication: int,
        confirm: Callable[[], Status],
        discard: Callable[[int], None],
    ) -> None:
        super().__init__(path, confirm, discard)
        options = WriteOptions(
            block_size=block_size or None,
            replication=replication or None,
            overwrite=False,
            create_parent=False,
        )
        self._writer: Any = native.ask(lambda client: client.create(path, options), path)

    def write(self, data: Buffer) -> None:
        self._check_open()
        if data:
            self._written += len(data)
            self._do(lambda: self._writer.write(data if isinstance(data, bytes) else bytes(data)))

    def close(self) -> Status:
        self._check_open()
        self._do(self._writer.close)
        return self._closed(self._confirm())

    def abort(self) -> None:
        if self._over:
            return
        self._discard(self._written)
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            self._writer.close()
        self._end("it was given up")

    def _do(self, call: Callable[[], object]) -> None:
        try:
            call()
        except (OSError, RuntimeError, ValueError) as error:
            translated = translate(error, self._path)
            # An error without a class of its own arose between the library and DataNodes of its choice.
            raise Transient(translated.message) if type(translated) is StoreError else translated from error

    def _end(self, why: str) -> None:
        super()._end(why)
        io.RawIOBase.close(self._writer)  # marks it, so that its destructor does not close it at the store again
