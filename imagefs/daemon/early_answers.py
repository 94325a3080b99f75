"""Tags and documents for which stores are asked before their image is attached.

A client announces the image as the first thing it does (`imagefs.daemon.announcement`). The store is asked at once, by
the settings with which it was used last, or by the defaults where the client says that nothing else is set. The
attachment takes that answer. It is for the attachment of the announced id alone, so that no answer is older than the
command that gets it. The documents of the image, which never change, are fetched as soon as the answer is there.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from imagefs.reference import parse_reference
from stripefs.background import contain
from stripefs.errors import StripefsError
from stripefs.settings import StoreSettings, redact

__all__ = ["EarlyAnswers"]

_log = logging.getLogger(__name__)
_HELD = 2.0
"""Seconds for which an answer waits for its attachment. A command gets that far in a tenth of it, or has failed."""

_MOST = 64
"""Announcements at once; others are left out."""

Resolve = Callable[[StoreSettings, str], Awaitable[tuple[str, bool]]]
"""Asks a store what a tag stands for, as `Documents.resolve` does."""

Documents = Callable[[StoreSettings, str], contextlib.AbstractAsyncContextManager[None]]
"""Brings the documents of the image with this digest here; keeps its devices open while its context is entered."""


class _Answer:
    """found: None before it is known, and where the store raised `error`."""

    def __init__(self, store: StoreSettings, name: str) -> None:
        self.store = store
        self.name = name
        self.known = trio.Event()
        self.found: tuple[str, bool] | None = None
        self.error: StripefsError | None = None


class EarlyAnswers:
    """Those of one worker. kept_open: keeps the connection to a store while its context is entered."""

    def __init__(
        self,
        resolve: Resolve,
        kept_open: Callable[[StoreSettings], contextlib.AbstractContextManager[None]],
        documents: Documents,
    ) -> None:
        self._resolve = resolve
        self._kept_open = kept_open
        self._documents = documents
        self._stores: dict[str, StoreSettings] = {}  # by URL, as they were used last
        self._answers: dict[str, _Answer] = {}  # by the id of their attachment
        self._nursery: trio.Nursery

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    async def announce(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """An image will be attached under this id soon. Raises ConfigError for what names none."""
        reference = parse_reference(str(request["image"]))
        store = self._stores.get(reference.store)
        if store is None and request.get("plain") is True:
            store = StoreSettings(url=reference.store)
        if store is not None and len(self._answers) < _MOST:
            answer = self._answers[str(request["id"])] = _Answer(store, reference.name)
            what = f"asking {redact(store.url)} for {reference.name}"
            self._nursery.start_soon(contain, what, self._ask, str(request["id"]), answer)
        return {}

    async def resolve(self, identifier: str, store: StoreSettings, name: str) -> tuple[str, bool]:
        """The answer of the store for this attachment: that to its announcement, or to a question now. Raises what the
        store raises."""
        self._stores[store.url] = store
        answer = self._answers.pop(identifier, None)
        if answer is not None and (answer.store, answer.name) == (store, name):
            await answer.known.wait()
            if answer.error is not None:
                raise answer.error
            if answer.found is not None:
                return answer.found
        return await self._resolve(store, name)

    async def _ask(self, identifier: str, answer: _Answer) -> None:
        try:
            with self._kept_open(answer.store):
                try:
                    answer.found = await self._resolve(answer.store, answer.name)
                except StripefsError as error:
                    answer.error = error
                answer.known.set()
                if answer.found is None:
                    await trio.sleep(_HELD)
                    return
                try:
                    async with self._documents(answer.store, answer.found[0]):
                        await trio.sleep(_HELD)
                except* StripefsError as errors:  # its attachment meets them and tells of them
                    _log.info("the documents of %s are not here yet: %s", answer.name, errors.exceptions[0])
        finally:
            answer.known.set()
            if self._answers.get(identifier) is answer:
                del self._answers[identifier]
