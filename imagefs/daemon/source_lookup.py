"""Looks up which image was built from an OCI manifest, in several stores at once.

A snapshotter asks for each layer of each image that a host pulls, and its client waits for the answer. So an answer of
a store holds for `REMEMBERED` seconds, also that it has no such image, and nobody waits longer than it asked for: what
a store answers later is remembered for who asks again. A store that is away is asked again after `AWAY` seconds. A
store stays connected as long as an answer of it is remembered.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from imagefs.daemon.protocol import FindRequest
from imagefs.errors import NoSuchImage
from stripefs.errors import StripefsError
from stripefs.settings import StoreSettings, redact, store_settings
from stripefs.supervised import contain

__all__ = ["AWAY", "REMEMBERED", "SourceLookup"]

_log = logging.getLogger(__name__)

REMEMBERED = 60.0
AWAY = 10.0

_Key = tuple[StoreSettings, str]


class _Answer:
    """Of one store about one manifest. image: the digest of the image, "" for none; known: when the store has said."""

    def __init__(self) -> None:
        self.known = trio.Event()
        self.image = ""


class SourceLookup:
    """Asks stores by `ask(store, source)`, which raises NoSuchImage and StoreErrors. kept_open: keeps the connection
    to a store while its context is entered."""

    def __init__(
        self,
        ask: Callable[[StoreSettings, str], Awaitable[str]],
        kept_open: Callable[[StoreSettings], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._ask = ask
        self._kept_open = kept_open
        self._answers: dict[_Key, _Answer] = {}
        self._nursery: trio.Nursery

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    async def find(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answers a `FindRequest`: the digest of an image, "" where no store is known to have it, and the number of the
        first store that has it. Raises ConfigError."""
        asked = FindRequest.from_json(request)
        stores = [store_settings(one) for one in asked.stores]
        answers = [self._answer((store, asked.source)) for store in stores]
        with trio.move_on_after(asked.timeout):
            for answer in answers:
                await answer.known.wait()
                if answer.image:
                    break
        for number, answer in enumerate(answers):
            if answer.image:
                return {"image": answer.image, "store": number}
        return {"image": "", "store": -1}

    def _answer(self, key: _Key) -> _Answer:
        """The remembered answer to a question; starts a look-up where there is none."""
        if key not in self._answers:
            self._answers[key] = _Answer()
            what = f"looking for {key[1][:19]} in {redact(key[0].url)}"
            self._nursery.start_soon(contain, what, self._look, key)
        return self._answers[key]

    async def _look(self, key: _Key) -> None:
        answer, holds = self._answers[key], REMEMBERED
        try:
            with self._kept_open(key[0]):
                try:
                    answer.image = await self._ask(*key)
                except NoSuchImage:
                    pass
                except StripefsError as error:
                    _log.warning("%s is not asked for images for %g s: %s", redact(key[0].url), AWAY, error)
                    holds = AWAY
                answer.known.set()
                await trio.sleep(holds)
        finally:
            answer.known.set()
            del self._answers[key]
