"""What all files of a mount that are being written share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import trio

from stripefs.errors import Unsupported
from stripefs.executor import Lane
from stripefs.format.manifest import Manifest
from stripefs.format.reserved_names import POOL
from stripefs.store.base import Store
from stripefs.store.striped import StripedStore
from stripefs.units import shown
from stripefs.write.budget import Budget
from stripefs.write.copies import Copies, no_copies
from stripefs.write.effects import Effects
from stripefs.write.figures import Figures
from stripefs.write.policy import Layout, Means, WritePolicy, best_layout
from stripefs.write.sender import Sender

__all__ = ["Shared"]

_log = logging.getLogger(__name__)

_STREAMS = 64
"""Files written in one go whose sinks are written, closed or given up at once."""


@dataclass(eq=False)
class Shared:
    """view: how files are read, striped ones as one. store: the one below, which is written to.

    bury(versions, pool) is told which striped versions a publication has replaced. renewals: calls that may not wait
    for any other one. copies: who wants the bytes of each file too. nursery: while the mount runs.
    """

    view: Store
    store: Store
    policy: WritePolicy
    bury: Callable[[Iterable[str], bytes], None] | None
    effects: Effects
    renewals: Effects
    sender: Sender
    budget: Budget
    copies: Copies
    nursery: trio.Nursery | None = None
    said: set[str] = field(default_factory=set)
    streams: Lane = field(default_factory=lambda: Lane("streams", _STREAMS))

    @classmethod
    def of(
        cls,
        view: Store,
        policy: WritePolicy,
        bury: Callable[[Iterable[str], bytes], None] | None,
        copies: Copies = no_copies,
    ) -> Shared:
        store = view.inner if isinstance(view, StripedStore) else view
        effects = Effects(store, policy.io_timeout)
        renewals = Effects(store, policy.io_timeout, effects.figures)
        sender = Sender(store, effects, policy.io_timeout)
        return cls(view, store, policy, bury, effects, renewals, sender, Budget(policy.memory), copies)

    @property
    def figures(self) -> Figures:
        return self.effects.figures

    @property
    def pool(self) -> bytes:
        """What manifests say of where their parts are."""
        return self.view.pool if isinstance(self.view, StripedStore) else POOL

    def ensure_ours(self, manifest: Manifest) -> None:
        """Raises Unsupported where what is appended would lie in another pool than what is there: a file has one."""
        if isinstance(self.view, StripedStore) and self.view.foreign(manifest.pool):
            raise Unsupported(
                f"its parts lie in {shown(manifest.pool)}, so nothing is written behind them",
                hint="copy the file and write the copy, or mount what that pool belongs to",
            )

    def layout(self, wanted: Layout) -> Layout:
        """The layout that a big file gets; says once why it is another than the one that is wanted."""
        able = self.store.capabilities
        if wanted is Layout.STRIPED and not isinstance(self.view, StripedStore):
            layout, why = Layout.PLAIN, "striped files cannot be read here"
        else:
            layout, why = best_layout(wanted, Means(able.writes, able.replace, able.concat, able.marks))
        if why and why not in self.said:
            self.said.add(why)
            _log.warning("big files are written as %s, not %s: %s", layout.value, wanted.value, why)
        return layout

    async def manifest(self, path: bytes) -> Manifest | None:
        """That of the striped file at `path`; None for other files, and where there is none."""
        view = self.view
        if not isinstance(view, StripedStore):
            return None
        return await self.effects.call("reading what is replaced", lambda: view.manifest(path))
