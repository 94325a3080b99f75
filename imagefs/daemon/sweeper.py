"""Has `imagefs.daemon.leftovers` remove what uses of images left that ended without removing it."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

import trio

from imagefs.daemon import leftovers
from imagefs.daemon.helpers import run_helper
from imagefs.settings import DaemonSettings
from stripefs.errors import ServiceDown
from stripefs.executor import Lane

__all__ = ["Sweeper"]

_log = logging.getLogger(__name__)

_WITHIN = 60.0
"""Seconds that a try may take."""

_SOON, _LATER = 2.0, 60.0
"""Seconds until what could not go yet is tried again, the first time and at most: each try is a process."""


class Sweeper:
    """For the cache and the runtime folder of `settings`."""

    def __init__(self, settings: DaemonSettings) -> None:
        self._settings = settings
        self._over: set[str] = set()  # attachments that are over, of which something may be there
        self._stir = trio.Event()
        self._lane = Lane("leftovers", 1)

    async def find(self, alive: Iterable[str]) -> None:
        """See what is there of attachments that nobody knows any more: all but those `alive`."""
        self._over |= await self._remains() - set(alive)
        self._stir.set()

    def over(self, attachment: str) -> None:
        """This one has just ended."""
        self._over.add(attachment)
        self._stir.set()

    async def run(self) -> None:
        """Until cancelled."""
        pause = math.inf
        while True:
            with trio.move_on_after(pause) as waited:
                await self._stir.wait()
            self._stir = trio.Event()
            over, remains = set(self._over), await self._remains()
            self._over -= over - remains
            if left := over & remains:
                await self._remove(sorted(left))
                pause = min(2 * pause, _LATER) if waited.cancelled_caught else _SOON
            else:
                pause = math.inf

    async def _remove(self, ids: list[str]) -> None:
        facts = {"cache": self._settings.cache, "runtime": self._settings.runtime, "ids": ids}
        try:
            await run_helper("imagefs.daemon.leftovers", facts, _WITHIN)
        except OSError as error:
            for line in str(error).splitlines():
                _log.warning("what is left of uses stays: %s", line)

    async def _remains(self) -> set[str]:
        """The attachments of which something is there besides their mounts."""
        try:
            return await self._lane.run(
                "looking for what is left of uses", leftovers.find, self._settings.cache, self._settings.runtime,
                timeout=_WITHIN,
            )  # fmt: skip
        except (OSError, ServiceDown) as error:
            _log.warning("what is left of uses stays: %s", error)
            return set()
