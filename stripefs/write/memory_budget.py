"""The memory budget of a write session: one limit for all files being written, first come first served.

No writer waits for ever. Bytes are *open* while they wait for more of their part, and *sealed* once the part is on its
way: sealed bytes come back by themselves, when the part is acknowledged or given up, which the senders do within the
I/O time-out. So a writer that waits for memory waits for sealed bytes; where there are too few of those, the account
with the most open bytes is told to seal what it has (`flush`), be it an idle file or the waiting one itself. A full
budget therefore slows the writers and shortens parts, and does nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from stripefs.errors import DraftLost

__all__ = ["MemoryAccount", "MemoryBudget"]


class MemoryAccount:
    """The bytes of one file. `flush()` must seal all open bytes before it returns; it is called on trio's thread."""

    def __init__(self, budget: MemoryBudget, flush: Callable[[], None]) -> None:
        self._budget = budget
        self._flush = flush
        self.open = 0
        self.sealed = 0
        self.granted = 0
        """Handed out while their writer slept; it takes them when it runs."""
        self.closed = False

    @property
    def held(self) -> int:
        return self.open + self.sealed + self.granted

    async def acquire(self, size: int) -> None:
        """Wait for `size` bytes; they are open then, and the caller puts them where `flush` finds them at once.

        Then it calls `acquired`. Raises DraftLost when the account is closed meanwhile.
        """
        await self._budget.acquire(self, size)

    def acquired(self) -> None:
        """The bytes that were taken can be cut now."""
        self._budget.serve()

    def seal(self, size: int) -> None:
        """`size` open bytes are on their way."""
        assert 0 <= size <= self.open
        self.open -= size
        self.sealed += size

    def release(self, size: int) -> None:
        """`size` sealed bytes are no longer held."""
        assert 0 <= size <= self.sealed
        self.sealed -= size
        self._budget.released(size)

    def drop(self, size: int) -> None:
        """`size` open bytes are no longer held."""
        assert 0 <= size <= self.open
        self.open -= size
        self._budget.released(size)

    def flush(self) -> None:
        self._flush()
        assert not self.open, "flushing leaves nothing open"

    def close(self) -> None:
        """Nothing is taken any more: waiting writers get DraftLost. Sealed bytes come back as they do."""
        self.closed = True
        self._budget.close_account(self)


class MemoryBudget:
    """`limit` in bytes. One piece larger than the limit passes when nothing else is held."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.waits = 0
        self.waited = 0.0
        """Seconds, of all waits that are over."""
        self.used = 0
        self._accounts: list[MemoryAccount] = []
        self._queue: deque[_Waiter] = deque()
        self._serving = False

    @property
    def busy(self) -> int:
        """Accounts that hold or want memory now, at least 1."""
        wanting = {id(waiter.account) for waiter in self._queue}
        return max(1, sum(account.held > 0 or id(account) in wanting for account in self._accounts))

    def account(self, flush: Callable[[], None]) -> MemoryAccount:
        account = MemoryAccount(self, flush)
        self._accounts.append(account)
        return account

    async def acquire(self, account: MemoryAccount, size: int) -> None:
        if account.closed:
            raise DraftLost("the file is no longer being written")
        if not self._queue and self._fits(size):
            self.used += size
            account.open += size
            return
        waiter = _Waiter(account, size)
        self._queue.append(waiter)
        self.waits += 1
        began = trio.current_time()
        try:
            self.serve()
            await waiter.ready.wait()
        except trio.Cancelled:
            if waiter.served:
                account.granted -= size
                self.used -= size
            elif waiter in self._queue:
                self._queue.remove(waiter)
            self.serve()
            raise
        finally:
            self.waited += trio.current_time() - began
        if not waiter.served:
            raise DraftLost("the file is no longer being written")
        account.granted -= size
        account.open += size

    def released(self, size: int) -> None:
        """`size` bytes are held no longer."""
        self.used -= size
        self.serve()

    def serve(self) -> None:
        """Hand out what is free, in order, and see that what is missing will come."""
        if self._serving:  # cutting seals, which asks to serve again: the loop below sees what changed
            return
        self._serving = True
        try:
            while self._queue:
                first = self._queue[0]
                if self._fits(first.size):
                    self._queue.popleft()
                    self.used += first.size
                    first.account.granted += first.size
                    first.served = True
                    first.ready.set()
                elif not self._flush_fullest(first.size):
                    return
        finally:
            self._serving = False

    def close_account(self, account: MemoryAccount) -> None:
        """Forget a closed account once it holds nothing, and let go those who wait in its name."""
        for waiter in [waiter for waiter in self._queue if waiter.account is account]:
            self._queue.remove(waiter)
            waiter.ready.set()
        self._forget()
        self.serve()

    def _forget(self) -> None:
        self._accounts = [account for account in self._accounts if account.held or not account.closed]

    def _fits(self, size: int) -> bool:
        return self.used + size <= self.limit or self.used == 0

    def _flush_fullest(self, size: int) -> bool:
        """True if something was cut: enough must be on its way back for a waiter of `size` bytes."""
        self._forget()
        coming = sum(account.sealed for account in self._accounts)
        if self.limit - self.used + coming >= size:
            return False
        fullest = max(self._accounts, key=lambda account: account.open, default=None)
        if fullest is None or not fullest.open:
            return False
        fullest.flush()
        return True


class _Waiter:
    def __init__(self, account: MemoryAccount, size: int) -> None:
        self.account = account
        self.size = size
        self.ready = trio.Event()
        self.served = False
