"""A stripefs store as a repository: each object is a file."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from imagefs.errors import DamagedObject
from imagefs.repository.base import Capabilities, RangeReader, Repository
from stripefs.errors import Exists
from stripefs.store.base import Attributes, Buffer, Status, Store

if TYPE_CHECKING:
    from stripefs.write.file_lock import FileLock
    from stripefs.write.store_clock import StoreClock

__all__ = ["StoreRepository"]


class StoreRepository(Repository):
    """The files of `store`, which is closed with this."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.url = store.url
        can = store.capabilities
        self.capabilities = Capabilities(
            put=can.put,
            list=can.listing,
            put_if_absent=can.put_if_absent,
            list_objects=can.listing,
            replication=can.replication,
        )
        self._clock: StoreClock | None = None

    def read(self, path: bytes, most: int = 0) -> Buffer:
        if not most:
            return self.store.get(path)
        handle = self.store.open(path)
        try:
            if handle.status.length > most:
                raise DamagedObject(f"{path.decode()} in {self.url} has {handle.status.length} bytes")
            return handle.read(0, handle.status.length) if handle.status.length else b""
        finally:
            handle.close()

    def stat(self, path: bytes) -> Status:
        return self.store.stat(path)

    def put(self, path: bytes, data: bytes, *, replace: bool = False) -> None:
        self.store.put(path, [data], replace=replace)

    def entries(self, folder: bytes) -> list[Status]:
        return [status for batch in self.store.scandir(folder) for status in batch]

    def remove(self, path: bytes) -> None:
        self.store.remove(path)

    def set_replication(self, path: bytes, replicas: int) -> None:
        self.store.set_attributes(path, Attributes(replication=replicas))

    def open(self, path: bytes) -> RangeReader:
        return self.store.open(path)

    def now_ns(self) -> int:
        if self._clock is None:
            from stripefs.write.store_clock import StoreClock  # only those who write need it

            self._clock = StoreClock(self.store)
        return self._clock.now_ns()

    def lock(self, path: bytes, owner: str, seconds: float) -> FileLock:
        from stripefs.write.file_lock import take  # only those who install need it

        if self.store.capabilities.writes:
            with contextlib.suppress(Exists):
                self.store.mkdir(path.rpartition(b"/")[0])
        return take(self.store, path, owner=owner, seconds=seconds)

    def close(self) -> None:
        self.store.close()
