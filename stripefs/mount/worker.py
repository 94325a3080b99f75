"""The worker: serves one mount until it is unmounted, or until it dies and the supervisor starts the next one.

Started as `python -P -m stripefs.mount.worker CHANNEL SUPERVISOR MOUNTPOINT`: the descriptor of its end of the channel,
the supervisor's pid, and the mountpoint only so that ps shows it. It never touches a file below that mountpoint.

pyfuse3 can only mount or be given `/dev/fd/N`, and always starts by answering INIT. So N is first a socket that holds
the kept INIT message; when pyfuse3 has read it, `Operations.init` puts the real device in its place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import signal
import socket
import sys
import types
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pyfuse3
import trio

from stripefs import __version__, logs
from stripefs.errors import NotADirectory, ServiceDown, StripefsError, Transient
from stripefs.mount import channel as talk
from stripefs.mount import kernel
from stripefs.mount.journal import Board, MemoryJournal
from stripefs.mount.operations import StripefsOperations
from stripefs.mount.service import Service
from stripefs.read import Reader
from stripefs.settings import Settings
from stripefs.store.allocator import tune_allocator
from stripefs.store.base import Kind, Store
from stripefs.store.url import open_store, redact
from stripefs.tree import State, Tree

__all__ = ["main"]

_log = logging.getLogger("stripefs.mount.worker")  # also when this is __main__

TASKS = 512
"""Requests answered at once. pyfuse3's default of 99 could all be reads that wait, and then metadata would wait too."""

_RECONNECT_EVERY = 1.0

_OPTIONS = frozenset(("fsname=stripefs",))  # names nothing here: the supervisor has mounted already


def main() -> None:
    """The program. Exit status 0 after an unmount or a reported start-up failure."""
    kernel.die_with_parent(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor unmounts
    channel = socket.socket(fileno=int(sys.argv[1]))
    code = 0
    try:
        start, descriptors = talk.receive(channel)
        worker = _Worker(channel, start, descriptors)
        trio.run(worker.run)
    except EOFError:
        pass  # the supervisor gave up before it began
    except Exception:  # noqa: BLE001  the last word of this process; it ends here
        _log.critical("the worker dies; the supervisor starts the next one. Please report this", exc_info=True)
        code = 1
    logging.shutdown()
    os._exit(code)  # threads that wait for a dead server must not hold up the end


class _Worker:
    def __init__(self, channel: socket.socket, start: dict[str, Any], descriptors: list[int]) -> None:
        self._channel = channel
        self._settings = Settings.from_json(start["settings"])
        self._facts: dict[str, Any] = start["facts"]
        self._first: bool = start["first"]
        self._file_ids: bool = start["file_ids"]
        board, slot0, slot1, *listeners = descriptors
        self._board = Board(board)
        self._journal = MemoryJournal(self._board, (slot0, slot1))
        self._listeners = [socket.socket(fileno=descriptor) for descriptor in listeners]
        self._initialised = trio.Event()
        self._tree: Tree | None = None

    async def run(self) -> None:
        mount = self._settings.mount
        logs.configure(mount.log_format, mount.log_level, mount.log_file)
        logging.getLogger("pyfuse3").addFilter(_is_news)
        kernel.set_io_flusher()
        tune_allocator()
        try:
            store = await (self._check_source() if self._first else self._open_store())
        except StripefsError as error:
            talk.send(self._channel, {"op": "failed", **talk.describe_error(error)})
            return
        talk.send(self._channel, {"op": "ready", "source": store.url, "file_ids": store.capabilities.file_ids})
        message, (device,) = await trio.to_thread.run_sync(talk.receive, self._channel, abandon_on_cancel=True)
        async with trio.open_nursery() as nursery:
            reader = Reader(store, self._settings.read)
            await nursery.start(reader.run)
            self._tree = self._make_tree(store, reader)
            service = Service(self._listeners, lambda: self._status(store, reader), self._ask_to_stop)
            nursery.start_soon(service.run)
            nursery.start_soon(self._announce)
            await self._serve(bytes.fromhex(message["init"]), device)
            nursery.cancel_scope.cancel()
        store.close()

    async def _open_store(self) -> Store:
        """Connect; wait for a store that is away, because callers already wait for this worker."""
        deadline = trio.current_time() + self._settings.read.io_timeout
        said = ""
        while True:
            try:
                return await trio.to_thread.run_sync(self._connect_as_before, abandon_on_cancel=True)
            except Transient as error:
                if trio.current_time() > deadline:
                    raise
                if str(error) != said:
                    said = str(error)
                    _log.warning("the store is away, requests wait for it: %s", error)
            await trio.sleep(_RECONNECT_EVERY)

    def _connect_as_before(self) -> Store:
        """Raises ServiceDown as long as the service that gave the first worker its file ids is away.

        Without them every identity would differ, and every open file would seem to be replaced.
        """
        store = open_store(self._settings.store)
        if self._file_ids and not store.capabilities.file_ids:
            store.close()
            raise ServiceDown(f"{store.url} gives no file ids now, as it did before")
        return store

    async def _check_source(self) -> Store:
        """Connect, once; raise what keeps the source from being mounted."""
        timeout = self._settings.read.io_timeout
        with trio.move_on_after(timeout):
            store = await trio.to_thread.run_sync(open_store, self._settings.store, abandon_on_cancel=True)
            root = await trio.to_thread.run_sync(store.stat, b"/", abandon_on_cancel=True)
            if root.kind is not Kind.DIRECTORY:
                raise NotADirectory(f"{store.url} is no directory", hint="mount the directory that holds it")
            return store
        raise ServiceDown(
            f"{redact(self._settings.store.url)} did not answer within {timeout:g} s",
            hint="see whether its host and port are right",
        )

    def _make_tree(self, store: Store, reader: Reader) -> Tree:
        mount = self._settings.mount
        state = State(self._journal)
        state.replay(self._journal.load())
        return Tree(
            store,
            reader,
            state=state,
            attr_timeout=mount.attr_timeout,
            io_timeout=self._settings.read.io_timeout,
            umask=mount.umask,
            uid=mount.uid,
            gid=mount.gid,
        )

    async def _serve(self, init: bytes, device: int) -> None:
        """Answer the kernel until the file system is unmounted."""
        assert self._tree is not None
        ours, pretended = talk.pair()
        ours.send(init)
        number = pretended.detach()

        def on_init() -> None:
            os.dup2(device, number, inheritable=False)
            os.close(device)
            os.set_blocking(number, False)
            ours.close()
            self._initialised.set()

        _survive_vanished_requests()
        pyfuse3.init(StripefsOperations(self._tree, self._board, on_init), f"/dev/fd/{number}", set(_OPTIONS))
        await pyfuse3.main(max_tasks=TASKS)

    async def _announce(self) -> None:
        """Tell the supervisor when the mount answers, and learn from it what `status` should show."""
        await self._initialised.wait()
        talk.send(self._channel, {"op": "serving"})
        while True:
            await trio.lowlevel.wait_readable(self._channel)
            try:
                message, _ = talk.receive(self._channel)
            except EOFError:
                return
            self._facts = message["facts"]

    def _ask_to_stop(self) -> None:
        talk.send(self._channel, {"op": "stop"})

    def _status(self, store: Store, reader: Reader) -> dict[str, Any]:
        settings = self._settings
        return {
            "v": 1,
            "version": __version__,
            "mountpoint": settings.mount.mountpoint,
            "source": store.url,
            **self._facts,
            "worker_pid": os.getpid(),
            "requests": self._board.read(),
            "tree": self._tree.snapshot() if self._tree else {},
            "reader": reader.snapshot(),
            "store": store.describe(),
            # What `probe` needs to reach the source the same way; the URL without secrets.
            "settings": {
                "store": dataclasses.asdict(settings.store) | {"url": store.url},
                "read": dataclasses.asdict(settings.read),
            },
        }


def _is_news(record: logging.LogRecord) -> bool:
    """False for a reply that found its caller killed or its mount gone: ENOENT from the kernel, and nobody's loss."""
    return not record.getMessage().endswith(f"fuse_reply_* failed with {os.strerror(errno.ENOENT)}")


class _Nursery:
    """The nursery of pyfuse3's loop, in which a request that vanished ends nothing.

    A request vanishes when its caller is killed between epoll's wake-up and the read, which then answers EAGAIN;
    pyfuse3 takes that for the end of the world (measured: once in 700 kills on a busy machine). The loop that met it
    just begins anew; what it leaks is one read buffer of which a page or two were touched.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    def start_soon(self, loop: Callable[..., Awaitable[None]], *args: Any, name: str | None = None) -> None:
        self._nursery.start_soon(self._persist, loop, args, name=name)

    async def _persist(self, loop: Callable[..., Awaitable[None]], args: tuple[Any, ...]) -> None:
        while True:
            try:
                return await loop(*args)
            except BlockingIOError:
                _log.debug("a request vanished before it was read")


@contextlib.asynccontextmanager
async def _open_nursery() -> AsyncIterator[_Nursery]:
    async with trio.open_nursery() as nursery:
        yield _Nursery(nursery)


def _survive_vanished_requests() -> None:
    """Have pyfuse3 open its nursery through `_open_nursery`."""
    stand_in = types.SimpleNamespace(**_public(trio))
    stand_in.open_nursery = _open_nursery
    setattr(pyfuse3, "trio", stand_in)  # noqa: B010  pyfuse3.asyncio replaces it the same way; its stub hides the name


def _public(module: types.ModuleType) -> dict[str, Any]:
    return {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}


if __name__ == "__main__":
    main()
