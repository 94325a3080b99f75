"""All files of one mount that are being written: who writes what, their memory, and the tasks that send parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio

from stripefs.store.base import Attributes, Identity, Store
from stripefs.write.draft import Draft
from stripefs.write.policy import Layout, WritePolicy

__all__ = ["Drafts"]


class Drafts:
    """One a mount. `run` must be running (in the worker's nursery) while any draft is used.

    store: the view in which a striped file is ONE file (`StripedStore`) or any other; what is written goes to the
    store below it. bury(versions, pool): told after a publication of the striped versions that it replaced.
    """

    def __init__(
        self, store: Store, policy: WritePolicy, *, bury: Callable[[Iterable[str], bytes], None] | None = None
    ) -> None:
        raise NotImplementedError

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Sends parts and renews leases until cancelled. `await nursery.start(drafts.run)`."""

    async def begin(
        self,
        path: bytes,
        *,
        replacing: Identity | None,
        append: bool = False,
        attributes: Attributes | None = None,
        layout: Layout | None = None,
    ) -> Draft:
        """Begin a new version of the file at `path` (a file is there: `replacing` is its identity; None: none is).

        Takes the lock of `path`. append: the new version begins with the bytes of the one it replaces, and
        `draft.length` starts at its length. attributes: mode, owner, group, times that the published file gets.
        layout: None is the policy's. Nothing is visible before `Draft.publish`. A directory must exist above.

        Raises Busy (another writer, here or elsewhere), NotFound (no directory), Exists/StaleVersion when `path` is
        not what `replacing` says, Unsupported (append where the store cannot), StoreError.
        """
        raise NotImplementedError

    def get(self, path: bytes) -> Draft | None:
        """The draft of this mount that writes `path` now."""
        raise NotImplementedError

    def status(self) -> dict[str, object]:
        """Figures for `status` and metrics: files open, bytes of memory used, sends under way, retries."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Abandon what is still open and let the locks go. After that `run` may be cancelled."""
