"""Idempotent changes to the store, the counts of their failures, and the store's own clock.

A call that raises Transient is repeated until `timeout` seconds have passed (`stripefs.executor`). From the second try
on, an answer that says "already so" (the source of a rename is gone and its target is what the source was) counts as
success.

`StoreClock` reads the time that the store gives a fresh file. Leases and ages are measured by it alone: the clocks of
hosts differ, and what decides must be the same for all. Between two readings this host's clock measures the time that
passes, also while the machine sleeps.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from stripefs.errors import Abandoned, NotFound, ServiceDown, StoreError
from stripefs.executor import Executor
from stripefs.format.reserved_names import new_version, part_name
from stripefs.store.base import Attributes, Sink, Store
from stripefs.units import Pace, shown

__all__ = ["ClockReading", "StoreClock", "StoreOps", "WriteStats", "boot_time"]


def boot_time() -> float:
    """Seconds since this machine was booted, those included for which it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class ClockReading:
    """A reading of the store's clock: when this host's showed `at` (seconds), the store's showed `store_ns`
    (nanoseconds since 1970) or less.

    So a lock that bears `store_ns` lasts at least until its lease is over as counted from `at`.
    """

    store_ns: int
    at: float

    def moved_to(self, at: float) -> ClockReading:
        return ClockReading(self.store_ns + int((at - self.at) * 1e9), at)


class StoreClock:
    """Reads the clock of `store` once, by a hidden file in `folder` that is removed at once.

    From then on it goes with `clock`, seconds of this host that never go back. It never runs ahead of the store's own
    but for the drift of the two, so what it calls old is old. Raises StoreError where nothing can be written, or files
    get no time.
    """

    def __init__(self, store: Store, folder: bytes = b"/", clock: Callable[[], float] = boot_time) -> None:
        path = folder.rstrip(b"/") + b"/" + part_name(b"clock", new_version(), 0)
        self._clock = clock
        asked_at = clock()
        store.put(path, ())
        self._read_at = clock()  # later than the time that the file got
        try:
            self._then_ns = store.stat(path).mtime_ns
        finally:
            with contextlib.suppress(StoreError):  # gc finds it
                store.remove(path)
        if not self._then_ns:
            raise StoreError(f"{store.url} tells no times of files, so nothing is known to be old")
        self.reading = ClockReading(self._then_ns, asked_at)

    def now_ns(self) -> int:
        """Nanoseconds since 1970."""
        return self._then_ns + int((self._clock() - self._read_at) * 1e9)


@dataclass(eq=False)
class WriteStats:
    """taken: bytes that came in. errors: failed attempts by error, most of which are made again.

    lost: by error, how often what was written could not be kept, made durable or published.
    """

    taken: int = 0
    pace: Pace = field(default_factory=Pace)
    published: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    last_error: dict[str, Any] | None = None
    """`at` in seconds since 1970, `message`."""

    def tick(self, now: float) -> None:
        """To be called about every second."""
        self.pace.tick(now, self.taken)

    def failed(self, what: str, error: Exception) -> None:
        """An attempt at `what` failed."""
        self.errors[type(error).__name__] += 1
        self._note(what, error)

    def lose(self, what: str, error: Exception) -> None:
        """Count an error that cost bytes of `what`; its writer gets it, now or later."""
        self.lost[type(error).__name__] += 1
        self._note(what, error)

    def _note(self, what: str, error: Exception) -> None:
        self.last_error = {"at": time.time(), "message": f"{what}: {error}"}


_log = logging.getLogger(__name__)

COPIED_AT_ONCE = 8 << 20

SOURCES_AT_ONCE = 64
"""Files joined by one call: their names (about 60 bytes each, percent-encoded up to three times that) stay within the
64 KiB that Hadoop's web server takes of a request's head, also with names of 255 bytes."""


class StoreOps(Executor):
    """`timeout` in seconds bounds each call with all its repetitions. stats: where failed attempts are counted."""

    def __init__(self, store: Store, timeout: float, stats: WriteStats | None = None) -> None:
        self.store = store
        self.stats = WriteStats() if stats is None else stats
        super().__init__(timeout, self.stats.failed)

    async def remove(self, path: bytes) -> None:
        """Nothing is at `path` afterwards."""

        def remove() -> None:
            with contextlib.suppress(NotFound):
                self.store.remove(path)

        await self.call(f"removing {shown(path)}", remove)

    async def withdraw(self, path: bytes) -> bool:
        """Remove a file that others may be renaming, by one try; False where it is not there (any more)."""

        def withdraw() -> bool:
            try:
                self.store.remove(path)
            except NotFound:
                return False
            return True

        return await self.lane("metadata").run(f"removing {shown(path)}", withdraw, timeout=self.timeout)

    async def put(self, path: bytes, data: bytes) -> None:
        """Replaces what is there, atomically."""
        await self.call(f"writing {shown(path)}", lambda: self.store.put(path, [data], replace=True))

    async def rename_over(self, source: bytes, target: bytes, length: int) -> None:
        """`source`, of `length` bytes, becomes `target`, whatever file was there."""

        def rename() -> None:
            self.store.rename(source, target, replace=True)

        def repeat() -> None:
            try:
                rename()
            except NotFound:
                if not self._is(target, length):
                    raise

        await self.call(f"renaming {shown(source)} to {shown(target)}", rename, repeat=repeat)

    async def set_attributes(self, path: bytes, attributes: Attributes) -> None:
        def change() -> None:
            self.store.set_attributes(path, attributes)

        await self.call(f"setting attributes of {shown(path)}", change)

    async def concat(
        self,
        target: bytes,
        length: int,
        sources: Sequence[tuple[bytes, int]],
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """The bytes of `sources` (path, length each) go behind the `length` bytes of `target`, in order.

        Not one step for everyone when there are more than SOURCES_AT_ONCE: give it a target that nobody sees then.
        wanted: asked from other threads when it is over. If not the target goes, though nobody waits for it any more.
        """

        def concat(paths: list[bytes]) -> None:
            with self._gone_unless(wanted, target):
                self.store.concat(target, paths)

        def repeat(paths: list[bytes], joined: int) -> None:
            # Look first: stores answer differently for sources that are gone already.
            if not self._is(target, joined):
                concat(paths)

        for at in range(0, len(sources), SOURCES_AT_ONCE):
            batch = sources[at : at + SOURCES_AT_ONCE]
            paths, length = [path for path, _ in batch], length + sum(size for _, size in batch)
            what = f"joining {len(batch)} parts behind {shown(target)}"
            await self.call(what, partial(concat, paths), repeat=partial(repeat, paths, length))

    async def copy_together(
        self, sources: Sequence[bytes], target: bytes, length: int, wanted: Callable[[], bool]
    ) -> None:
        """A new file of the bytes of `sources`, `length` in all. A source that is gone was joined to one before it.

        wanted: as in `concat`.
        """

        def copy() -> None:
            with self._gone_unless(wanted, target):
                sink = self.store.create(target, length=length)
                try:
                    left = length
                    for path in sources:
                        with contextlib.suppress(NotFound):
                            left -= _append(self.store, path, sink, wanted)
                    if left:
                        raise StoreError(f"{left} bytes of {shown(target)} are missing")
                    sink.close()
                except BaseException:
                    sink.abort()
                    raise

        await self.call(f"copying {len(sources)} parts to {shown(target)}", copy)

    async def clear(self, paths: Iterable[bytes], folder: bytes = b"") -> None:
        """Remove what is rubbish now, then the directory `folder` if that is empty, as far as one try does.

        The rest is found by gc. Raises nothing.
        """
        paths = list(paths)

        def clear() -> None:
            for path in paths:
                try:
                    self.store.remove(path)
                except StoreError as error:
                    if not isinstance(error, NotFound):
                        _log.info("%s stays for gc: %s", shown(path), error)
            if folder:
                with contextlib.suppress(StoreError):
                    self.store.rmdir(folder)

        try:
            await self.lane("metadata").run("removing what is not needed", clear, timeout=self.timeout)
        except ServiceDown as error:
            _log.info("%d files stay for gc: %s", len(paths), error)

    @contextlib.contextmanager
    def _gone_unless(self, wanted: Callable[[], bool], path: bytes) -> Iterator[None]:
        """Around what makes the file at `path`, also by halves."""
        try:
            yield
        finally:
            if not wanted():
                with contextlib.suppress(StoreError):
                    self.store.remove(path)

    def _is(self, path: bytes, length: int) -> bool:
        try:
            return self.store.stat(path).length == length
        except NotFound:
            return False


def _append(store: Store, path: bytes, sink: Sink, wanted: Callable[[], bool]) -> int:
    """All bytes of the file at `path` go to `sink`; their number. Raises Abandoned when they are not wanted."""
    handle = store.open(path)
    try:
        length = handle.status.length
        for at in range(0, length, COPIED_AT_ONCE):
            if not wanted():
                raise Abandoned("nobody wants this file any more")
            sink.write(handle.read(at, min(COPIED_AT_ONCE, length - at)))
    finally:
        handle.close()
    return length
