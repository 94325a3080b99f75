"""A sink for stores that only know `put`: the pieces are handed to a `put` that runs in a thread of its own.

The file appears under its name when `close` answers, whole, and not at all after `abort`.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator

from stripefs.errors import Abandoned, StoreError
from stripefs.store.base import Buffer, Sink, Status, Store

__all__ = ["PutSink"]

_LOOK = 0.2
"""Seconds between looks whether the other thread still lives."""


class PutSink(Sink):
    """Replaces what is at `path`."""

    def __init__(self, store: Store, path: bytes) -> None:
        self._store = store
        self._path = path
        self._pieces: queue.Queue[Buffer | None] = queue.Queue(maxsize=1)  # the budget counts what lies here no more
        self._aborted = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="put", daemon=True)
        self._thread.start()

    def write(self, data: Buffer) -> None:
        self._hand(bytes(data) if isinstance(data, bytearray) else data)

    def close(self) -> Status:
        self._hand(None)
        self._thread.join()
        self._check()
        return self._store.stat(self._path)

    def abort(self) -> None:
        self._aborted = True
        with contextlib.suppress(queue.Full):
            self._pieces.put_nowait(None)

    def _hand(self, piece: Buffer | None) -> None:
        while True:
            self._check()
            if not self._thread.is_alive():
                raise StoreError(f"{self._path!r} was written before it was complete")
            try:
                self._pieces.put(piece, timeout=_LOOK)
            except queue.Full:
                continue
            return

    def _check(self) -> None:
        error = self._error
        if isinstance(error, StoreError):
            raise error
        if error is not None:
            raise StoreError(f"the client failed unexpectedly: {error!r}") from None

    def _run(self) -> None:
        try:
            self._store.put(self._path, self._handed(), replace=True)
        except BaseException as error:  # noqa: BLE001  # of whatever kind: the writer's thread learns of it
            self._error = error

    def _handed(self) -> Iterator[Buffer]:
        while True:
            try:
                piece = self._pieces.get(timeout=_LOOK)
            except queue.Empty:
                if self._aborted:
                    raise Abandoned("nobody wants this file any more") from None
                continue
            if self._aborted:
                raise Abandoned("nobody wants this file any more")
            if piece is None:
                return
            yield piece
