"""The engine: one thread of this process that runs trio, with everything in it that reads and writes.

It starts with the first call and ends with the process. Any thread may call at any time; a call blocks its thread until
it is answered, and an interrupt (Ctrl-C) cancels it. A process that was forked has none of its parent's threads, so it
makes an engine of its own; files that were opened before the fork are opened again in it (`stripefs.api.file_reader`).

The end comes before Python waits for its threads, since reads under way would make it wait: writers give up unpublished
bytes, for at most `_LAST_WORK` seconds, and reads are cancelled.

**Errors.** Callers get the errors of stripefs as Python has them (`os_errors`): each becomes the OSError of its errno,
with the file's URL, and is its cause. `OSError` makes its own subclass of a number: FileNotFoundError of ENOENT,
PermissionError of EACCES, and so on. Mistakes in the arguments (a URL that means nothing, a limit out of bounds) are
ConfigErrors in stripefs and have EINVAL.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  whose own exit function is to be registered before ours, and so runs after
import contextlib
import errno
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar, TypeVarTuple

import trio

from stripefs.api.source import in_use
from stripefs.api.sources import Sources
from stripefs.background import supervise
from stripefs.errors import StoreError, StripefsError
from stripefs.settings import redact

__all__ = [
    "CrossSourceRename",
    "Engine",
    "as_os_error",
    "before_threads_end",
    "engine",
    "in_other_process",
    "os_errors",
    "stop",
]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")

_LAST_WORK = 10.0
"""Seconds that the end of the process waits for the engine: twice what writers take to let their locks go."""


class Engine:
    """The engine of one process; get it by `engine()`."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.sources: Sources
        self._token: trio.lowlevel.TrioToken
        self._nursery: trio.Nursery
        self._end: trio.Event
        self._began = threading.Event()
        self._over = False
        self._calls: set[_EngineCall] = set()
        self._thread = threading.Thread(target=self._main, name="stripefs", daemon=True)
        self._thread.start()
        self._began.wait()

    @property
    def usable(self) -> bool:
        """True if it runs, in this process."""
        return not self._over and self.pid == os.getpid()

    def call(self, function: Callable[[*_Args], Awaitable[_T]], *args: *_Args) -> _T:
        """Run `await function(*args)` in the engine; its result or error. Blocks."""
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError("the engine cannot wait for itself")
        call = _EngineCall(function, args)
        self._start(call)
        try:
            call.wait()
        except BaseException:  # an interrupt: the called function must end before its buffers are reused
            self.call_soon(call.cancel)
            call.wait()
            raise
        if call.error is not None:
            try:
                raise call.error
            finally:
                call.error = None  # its traceback holds this frame, and so the call
        answer: _T = call.answer
        return answer

    def begin(self, function: Callable[[*_Args], Awaitable[object]], *args: *_Args) -> None:
        """Begin `await function(*args)`, for whose end nobody waits. For any thread, at any time."""
        try:
            self._start(_EngineCall(function, args))
        except OSError:
            _log.debug("the engine has ended")

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call `function()` on the engine's thread, soon."""
        try:
            self._token.run_sync_soon(function)
        except trio.RunFinishedError:
            _log.debug("the engine has ended")

    def stop(self, timeout: float) -> None:
        """End the engine; calls under way fail. Waits for that, `timeout` seconds at most."""
        self._over = True
        self.call_soon(self._end.set)
        self._thread.join(timeout)

    # Inner workings

    def _start(self, call: _EngineCall) -> None:
        try:
            self._token.run_sync_soon(self._spawn, call)
        except trio.RunFinishedError:
            raise _ended() from None

    def _spawn(self, call: _EngineCall) -> None:
        if self._over:
            call.finish()
            return
        self._calls.add(call)
        self._nursery.start_soon(self._run_call, call)

    async def _run_call(self, call: _EngineCall) -> None:
        try:
            with in_use():
                await call.run()
        finally:
            self._calls.discard(call)
            call.finish()

    def _main(self) -> None:
        try:
            trio.run(self._run)
        except BaseException:  # noqa: BLE001  the last word of this thread
            _log.critical("the engine has failed, its files with it; please report this", exc_info=True)
        finally:
            self._over = True
            for call in list(self._calls):
                call.finish()
            self._began.set()

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._end = trio.Event()
        # Sources end after what is under way in them.
        async with trio.open_nursery() as outer:
            self.sources = Sources(outer)
            outer.start_soon(supervise, "closing idle connections", self.sources.run)
            try:
                async with trio.open_nursery() as self._nursery:
                    self._began.set()
                    await self._end.wait()
                    self._nursery.cancel_scope.cancel()
            finally:
                self._over = True
            outer.cancel_scope.cancel()
        self.sources.close()


class _EngineCall:
    """One call on its way through the engine."""

    def __init__(self, function: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> None:
        self._function = function
        self._args = args
        self._scope = trio.CancelScope()
        self.answer: Any = None
        self.error: BaseException | None = None
        self._answered = False
        self._finished = False
        self._gate = threading.Lock()  # an Event would cost several times as much, at each small read
        self._gate.acquire()

    def wait(self) -> None:
        """Wait until the call has finished; may be interrupted, and called again."""
        if not self._finished:
            self._gate.acquire()

    async def run(self) -> None:
        with self._scope:
            try:
                self.answer = await self._function(*self._args)
                self._answered = True
            except Exception as error:  # noqa: BLE001  the border: it goes to the caller, whatever it is
                self.error = error
            except trio.Cancelled:
                raise
            except BaseException as error:  # noqa: BLE001  a panic of a client written in Rust is no Exception
                self.error = OSError(errno.EIO, f"the client failed unexpectedly: {error!r}")

    def cancel(self) -> None:
        self._scope.cancel()

    def finish(self) -> None:
        """The caller may go on."""
        if not self._finished:
            if not self._answered and self.error is None:
                self.error = _ended()
            self._args = ()
            self._finished = True
            self._gate.release()


class CrossSourceRename(StoreError):
    """A name that cannot be moved there, as what it stands for would have to be copied."""

    errno = errno.EXDEV


def as_os_error(error: StripefsError, name: str) -> OSError:
    """`error`, which concerns the file of this URL ("" for none)."""
    return OSError(error.errno, str(error), redact(name)) if name else OSError(error.errno, str(error))


@contextlib.contextmanager
def os_errors(name: str | Callable[[], str] = "") -> Iterator[None]:
    """Around calls about the file of this URL, or of the one that `name()` answers when it is needed."""
    try:
        yield
    except StripefsError as error:
        raise as_os_error(error, name if isinstance(name, str) else name()) from error


def in_other_process(name: str) -> OSError:
    """A file that is being written belongs to the process that opened it."""
    return OSError(errno.EBADF, "it was opened for writing by another process, before a fork", redact(name))


def _ended() -> OSError:
    return OSError(errno.ESHUTDOWN, "the process is ending, or its engine was stopped")


_current: Engine | None = None
_lock = threading.Lock()
_inherited: list[Engine] = []
"""Engines of parents: kept, as their finalizers signal threads that this process does not have."""

_ending = False


def engine() -> Engine:
    """The engine of this process, started if need be. Raises OSError when the process is ending."""
    global _current
    found = _current
    if found is not None and found.usable:
        return found
    with _lock:
        if _current is None or not _current.usable:
            if _ending:
                raise _ended()
            _current = Engine()
        return _current


def stop() -> None:
    """End the engine of this process; the next call makes another. Files that are open fail then."""
    global _current
    with _lock:
        found, _current = _current, None
    if found is not None and found.usable:
        found.stop(_LAST_WORK)


def _forked() -> None:
    global _current, _lock
    _lock = threading.Lock()
    if _current is not None:
        _inherited.append(_current)
        _current = None


def _at_exit() -> None:
    global _ending
    _ending = True
    stop()


def before_threads_end(function: Callable[[], None]) -> None:
    """Call `function` when the main thread has ended; functions are called in the reverse order of registration.

    It is what concurrent.futures uses to end its threads: Python waits for those before it calls what `atexit` knows.
    """
    getattr(threading, "_register_atexit", atexit.register)(function)


os.register_at_fork(after_in_child=_forked)
before_threads_end(_at_exit)
