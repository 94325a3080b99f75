"""Striped versions that lose their name by a rename or unlink: found before it, buried after it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Set

from stripefs.errors import NotADirectory, NotFound, StoreError
from stripefs.executor import Executor

__all__ = ["Bury", "Losses"]

Bury = Callable[[Iterable[str]], None]
"""Told which striped versions no name stands for any more; see `stripefs.upkeep.graves`."""


class Losses:
    """versions(path): the pool folders that a striped file needs; raises what `Store.stat` raises. writer_of(path): who
    else writes the file, "" for nobody. Both block. Without `bury` or `versions` there are none."""

    def __init__(
        self,
        calls: Executor,
        bury: Bury | None,
        versions: Callable[[bytes], Iterable[str]] | None,
        writer_of: Callable[[bytes], str],
    ) -> None:
        self._calls = calls
        self._bury = bury
        self._versions = versions
        self._writer_of = writer_of

    async def of(self, path: bytes) -> Set[str]:
        """Which versions lose their name with `path`. None where that cannot be told: gc finds those."""
        if self._bury is None or self._versions is None:
            return frozenset()
        try:
            return frozenset(await self._calls.call(f"look at {path!r}", self._versions, path))
        except StoreError:
            return frozenset()

    async def bury(self, versions: Set[str], path: bytes, *, held: bool) -> None:
        """`versions` have lost the name `path`, whose lock is `held` by the caller or by nobody.

        Who took it just before that may have read them, and name them in what they publish: then gc is to judge.
        """
        look, bury = self._versions, self._bury
        if look is None or bury is None or not versions:
            return

        def named_again() -> Set[str]:
            if not held and self._writer_of(path):
                return versions
            try:
                return frozenset(look(path))
            except (NotFound, NotADirectory):
                return frozenset()

        with contextlib.suppress(StoreError):
            bury(versions - await self._calls.call(f"look at {path!r}", named_again))
