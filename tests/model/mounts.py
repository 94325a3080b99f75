"""Mounts and collectors on one store in memory, on a virtual clock, whose calls fail or end their process on demand."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from typing import ClassVar, TypeVar

import trio

from stripefs.errors import NotFound, ServiceDown, StoreError
from stripefs.format.reserved_names import POOL, is_hidden
from stripefs.gc.deferred_delete import DeferredDelete
from stripefs.store.base import Identity, Sink, Status, Store
from stripefs.store.striped import StripedStore
from stripefs.store.wrapper import Parser, WrappedSink, WrappedStore
from stripefs.write import UploadManager, WritePolicy
from tests.support.simulation import Process, Simulation

__all__ = ["Client", "Died", "Mount", "bearing", "hidden_paths", "run_program"]

_T = TypeVar("_T")


class Died(BaseException):
    """The process has ended."""


class Client(WrappedStore):
    """The store as one process has it. A fault is `kind` at the `countdown`-th call from now on:

    refused  no effect, and ServiceDown; `away` does this from that call on, until `heal`
    lost     the effect, and ServiceDown for its answer
    before   the process ends before the effect; `after`: once it has had its effect
    meanwhile   `meanwhile()` is called before the effect
    """

    NAME = "client"
    PARAMETERS: ClassVar[dict[str, Parser]] = {}

    def __init__(self, inner: Store, simulation: Simulation | None = None) -> None:
        """simulation: of a mount, whose calls take a moment each. A program dies by an exception instead."""
        super().__init__(inner)
        self._simulation = simulation
        self.process = Process()
        self.dead = False
        self.kind = ""
        self.countdown = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def heal(self) -> bool:
        """No fault any more. True if it had come."""
        came = bool(self.kind) and self.countdown <= 0
        self.kind = ""
        return came

    def on_query(self, call: str, path: bytes, act: Callable[[], _T]) -> _T:
        return self._ask(act)

    def on_change(self, call: str, paths: tuple[bytes, ...], act: Callable[[], _T]) -> _T:
        if self._simulation is not None:
            self._simulation.pause(0.001)  # so that what goes on at the same time has its turn
        return self._ask(act)

    def put_document(self, path: bytes, data: bytes) -> Status | None:
        return self.on_change("put", (path,), lambda: self.inner.put_document(path, data))

    def move_document(self, source: bytes, target: bytes, seen: Identity, data: bytes) -> None:
        self.on_change("rename", (source, target), lambda: self.inner.move_document(source, target, seen, data))

    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        yield from self._ask(lambda: list(self.inner.scandir(path, after)))

    def sink(self, path: bytes, host: str, inner: Sink) -> Sink:
        return _Sink(inner, self)

    def _ask(self, act: Callable[[], _T]) -> _T:
        if self.dead:
            self._end()
        self.countdown -= 1
        due = self.kind if self.countdown == 0 or (self.kind == "away" and self.countdown < 0) else ""
        if due in ("refused", "away"):
            raise ServiceDown("refused")
        if due == "before":
            self._end()
        if due == "meanwhile":
            self.meanwhile()
        answer = act()
        if due == "after":
            self._end()
        if due == "lost":
            raise ServiceDown("the answer was lost")
        return answer

    def _end(self) -> None:
        """Ends the process. Of a mount, threads stand still until the test is over, and then do no harm."""
        first, self.dead = not self.dead, True
        if self._simulation is None:
            raise Died
        if first:
            self.process.stopped_until = math.inf
            self._simulation.pause(0.001)
        raise ServiceDown("the process has ended")


class _Sink(WrappedSink):
    def __init__(self, inner: Sink, client: Client) -> None:
        super().__init__(inner)
        self._client = client

    def close(self) -> Status:
        return self._client.on_change("close", (), self.inner.close)


class Mount:
    """The process of a mount that writes. `name`: the same for the next process of this mount."""

    def __init__(self, simulation: Simulation, store: Store, name: str, policy: WritePolicy) -> None:
        self._simulation, self._policy = simulation, policy
        self.name = name
        self.client = Client(store, simulation)
        self.view = StripedStore(self.client)
        self._started: list[tuple[trio.lowlevel.TrioToken, trio.Nursery, UploadManager]] = []
        self._over = False
        process = self.client.process
        simulation.begin(process, lambda: simulation.run_trio(process, self._main))
        simulation.run(lambda: bool(self._started))

    @property
    def uploads(self) -> UploadManager:
        return self._started[0][2]

    async def _main(self) -> None:
        deletions = DeferredDelete(self.client, self._policy.grace, self.view.pool)
        uploads = UploadManager(self.view, self._policy, schedule_delete=deletions.schedule, owner=self.name)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deletions.run)
            await nursery.start(uploads.run)
            self._started.append((trio.lowlevel.current_trio_token(), nursery, uploads))
            await trio.sleep(math.inf)
        self._over = True

    def do(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Its answer, or its error. Raises Died where the process ends meanwhile."""
        answers: list[_T] = []
        errors: list[StoreError] = []

        async def run() -> None:
            try:
                answers.append(await call())
            except StoreError as error:
                errors.append(error)

        self._tell(lambda nursery: nursery.start_soon(run))
        self._simulation.run(lambda: bool(answers or errors or self.client.dead))
        if errors:
            raise errors[0]
        if not answers:
            raise Died
        return answers[0]

    def kill(self) -> None:
        """As a power failure: nothing that was under way goes on."""
        self.client.dead = True
        self.client.process.stopped_until = math.inf

    def stop(self) -> None:
        """As umount; of a process that was killed, only its threads end."""
        if self.client.dead:
            self._simulation.resume(self.client.process)
        self._tell(lambda nursery: nursery.cancel_scope.cancel())
        self._simulation.run(lambda: self._over)

    def _tell(self, what: Callable[[trio.Nursery], object]) -> None:
        token, nursery, _ = self._started[0]
        token.run_sync_soon(what, nursery)
        loop = self.client.process.loop
        assert loop is not None
        self._simulation.wake(loop)


def run_program(simulation: Simulation, client: Client, work: Callable[[], _T]) -> _T:
    """A program such as `stripefs gc` that does its work and ends: its answer, or its error, or Died."""
    answers: list[_T] = []
    errors: list[StoreError | Died] = []

    def run() -> None:
        try:
            answers.append(work())
        except (StoreError, Died) as error:
            errors.append(error)

    simulation.begin(client.process, run)
    simulation.run(lambda: bool(answers or errors))
    if errors:
        raise errors[0]
    return answers[0]


def hidden_paths(store: Store) -> set[bytes]:
    """Hidden files beside files, and versions of the pool."""
    found = {
        folder.rstrip(b"/") + b"/" + status.name
        for folder in (b"/", b"/d")
        for batch in store.scandir(folder)
        for status in batch
        if is_hidden(status.name) and status.name != POOL[1:]
    }
    with contextlib.suppress(NotFound):
        found |= {POOL + b"/" + status.name for batch in store.scandir(POOL) for status in batch}
    return found


def bearing(paths: Iterable[bytes], versions: Collection[str]) -> list[bytes]:
    """Those that bear one of these versions."""
    return [path for path in paths if any(version.encode() in path for version in versions)]
