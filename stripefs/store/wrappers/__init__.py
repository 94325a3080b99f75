"""Stores around another store: they throttle, delay, fail, answer short or count. They ship, for demos and tests.

Each one is a URL prefix (`throttled+file:///data?rate=40MB/s`) and a class whose keyword arguments are the parameters
of that URL. What they do depends on their seed and on what is asked, never on the order in which threads run.
"""

from __future__ import annotations

from stripefs.store.wrappers.base import WrappedStore
from stripefs.store.wrappers.counting import CountingStore
from stripefs.store.wrappers.delayed import DelayedStore
from stripefs.store.wrappers.faulty import FaultyStore
from stripefs.store.wrappers.short import ShortStore
from stripefs.store.wrappers.throttled import ThrottledStore

__all__ = ["WRAPPERS", "CountingStore", "DelayedStore", "FaultyStore", "ShortStore", "ThrottledStore", "WrappedStore"]

WRAPPERS: dict[str, type[WrappedStore]] = {
    wrapper.NAME: wrapper for wrapper in (CountingStore, DelayedStore, FaultyStore, ShortStore, ThrottledStore)
}
