"""Lookups of names in stores: what a tag stands for, and which image was built from an OCI manifest.

Stores answer tasks of the daemon. An answer is kept for some seconds, during which its store stays connected.

A client announces the image as the first thing it does (`imagefs.daemon.announcement`). The store is asked at once, by
the settings with which it was used last, or by the defaults where the client says that nothing else is set. The
attachment takes that answer. It is for the attachment of the announced id alone, so that no answer is older than the
command that gets it. The documents of the image, which never change, are fetched as soon as the answer is there.

A snapshotter asks for each layer of each image that a host pulls which image was built from it, and its client waits
for the answer. So an answer of a store holds for `REMEMBERED` seconds, also that it has no such image, and nobody waits
longer than it asked for: what a store answers later is remembered for who asks again. A store that is away is asked
again after `AWAY` seconds.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

from imagefs.daemon.protocol import source_digest
from imagefs.daemon.requests import AnnounceRequest, FindAnswer, FindRequest
from imagefs.errors import NoSuchImage
from imagefs.reference import parse_reference
from stripefs.background import contain
from stripefs.errors import StripefsError
from stripefs.settings import StoreSettings, redact

__all__ = ["AWAY", "REMEMBERED", "EarlyAnswers", "SourceLookup"]

_log = logging.getLogger(__name__)

_HELD = 2.0
"""Seconds for which an answer waits for its attachment. A command gets that far in a tenth of it, or has failed."""

_MOST = 64
"""Announcements at once; others are left out."""

REMEMBERED = 60.0
AWAY = 10.0

_Found = TypeVar("_Found")

KeptOpen = Callable[[StoreSettings], contextlib.AbstractContextManager[None]]
"""Keeps the connection to a store while its context is entered."""

Documents = Callable[[StoreSettings, str], contextlib.AbstractAsyncContextManager[None]]
"""Brings the documents of the image with this digest here; keeps its devices open while its context is entered."""


class _Answer(Generic[_Found]):
    """The answer of one store about one name. found: None before it is known, and where the store raised `error`."""

    def __init__(self, store: StoreSettings, name: str) -> None:
        self.store = store
        self.name = name
        self.known = trio.Event()
        self.found: _Found | None = None
        self.error: StripefsError | None = None


class _Answers(Generic[_Found]):
    """Answers by key, each asked for by a task of its own. ask: asks a store about a name. hold: returns when an answer
    is to be forgotten; its store stays connected until then."""

    def __init__(
        self,
        kept_open: KeptOpen,
        ask: Callable[[StoreSettings, str], Awaitable[_Found]],
        hold: Callable[[_Answer[_Found]], Awaitable[None]],
    ) -> None:
        self._by_key: dict[object, _Answer[_Found]] = {}
        self._kept_open = kept_open
        self._ask = ask
        self._hold = hold
        self._nursery: trio.Nursery

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def _begin(self, key: object, store: StoreSettings, name: str, purpose: str) -> _Answer[_Found]:
        """Ask the store. purpose: as the log says it."""
        answer = self._by_key[key] = _Answer[_Found](store, name)
        self._nursery.start_soon(contain, purpose, self._look, key, answer)
        return answer

    async def _look(self, key: object, answer: _Answer[_Found]) -> None:
        try:
            with self._kept_open(answer.store):
                try:
                    answer.found = await self._ask(answer.store, answer.name)
                except StripefsError as error:
                    answer.error = error
                answer.known.set()
                await self._hold(answer)
        finally:
            answer.known.set()
            if self._by_key.get(key) is answer:
                del self._by_key[key]


class EarlyAnswers(_Answers[tuple[str, bool]]):
    """The answers about announced images of one worker, by the id of their attachment. resolve: asks a store what a tag
    stands for, as `Documents.resolve` does."""

    def __init__(
        self,
        resolve: Callable[[StoreSettings, str], Awaitable[tuple[str, bool]]],
        kept_open: KeptOpen,
        documents: Documents,
    ) -> None:
        super().__init__(kept_open, resolve, self._fetch)
        self._documents = documents
        self._stores: dict[str, StoreSettings] = {}  # by URL, as they were used last

    async def announce(self, request: AnnounceRequest) -> None:
        """An image will be attached under this id soon. Raises ConfigError for what names none."""
        reference = parse_reference(request.image)
        store = self._stores.get(reference.store)
        if store is None and request.plain:
            store = StoreSettings(url=reference.store)
        if store is not None and len(self._by_key) < _MOST:
            purpose = f"asking {redact(store.url)} for {reference.name}"
            self._begin(request.id, store, reference.name, purpose)

    async def resolve(self, identifier: str, store: StoreSettings, name: str) -> tuple[str, bool]:
        """The answer of the store for this attachment: that to its announcement, or to a question now. Raises what the
        store raises."""
        self._stores[store.url] = store
        answer = self._by_key.pop(identifier, None)
        if answer is not None and (answer.store, answer.name) == (store, name):
            await answer.known.wait()
            if answer.error is not None:
                raise answer.error
            if answer.found is not None:
                return answer.found
        return await self._ask(store, name)

    async def _fetch(self, answer: _Answer[tuple[str, bool]]) -> None:
        """Fetch the documents of the image, and keep its devices open for its attachment."""
        if answer.found is None:
            await trio.sleep(_HELD)
            return
        try:
            async with self._documents(answer.store, answer.found[0]):
                await trio.sleep(_HELD)
        except* StripefsError as errors:  # its attachment meets them and tells of them
            _log.info("the documents of %s are not here yet: %s", answer.name, errors.exceptions[0])


class SourceLookup(_Answers[str]):
    """Asks stores by `ask(store, source)`, which raises NoSuchImage and StoreErrors, and remembers their answers."""

    def __init__(self, ask: Callable[[StoreSettings, str], Awaitable[str]], kept_open: KeptOpen) -> None:
        super().__init__(kept_open, self._image, self._remember)
        self._image_of = ask

    async def find(self, request: FindRequest) -> FindAnswer:
        """The image that was built from a manifest, as far as stores are known to have it. Raises ConfigError."""
        source = source_digest(request.source)
        answers = [self._answer(store, source) for store in request.stores]
        with trio.move_on_after(request.timeout):
            for answer in answers:
                await answer.known.wait()
                if answer.found:
                    break
        for number, answer in enumerate(answers):
            if answer.found:
                return FindAnswer(answer.found, number)
        return FindAnswer("", -1)

    def _answer(self, store: StoreSettings, source: str) -> _Answer[str]:
        """The remembered answer to a question; starts a look-up where there is none."""
        found = self._by_key.get((store, source))
        purpose = f"looking for {source[:19]} in {redact(store.url)}"
        return found or self._begin((store, source), store, source, purpose)

    async def _image(self, store: StoreSettings, source: str) -> str:
        """The digest of the image in one store, "" for none."""
        try:
            return await self._image_of(store, source)
        except NoSuchImage:
            return ""

    async def _remember(self, answer: _Answer[str]) -> None:
        if answer.error is None:
            await trio.sleep(REMEMBERED)
        else:
            _log.warning("%s is not asked for images for %g s: %s", redact(answer.store.url), AWAY, answer.error)
            await trio.sleep(AWAY)
