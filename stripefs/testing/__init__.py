"""Stores around another store: they throttle, delay, fail, answer short or count. They ship, for demos and tests.

Each one is a URL prefix (`throttled+file:///data?rate=40MB/s`) and a class whose keyword arguments are the parameters
of that URL. Their behaviour depends on their seed and on what is asked, never on the order in which threads run.
"""

from __future__ import annotations

from stripefs.store.wrapper import WrappedStore
from stripefs.testing.counting import CountingStore
from stripefs.testing.faults import DelayedStore, FaultyStore, ShortStore
from stripefs.testing.throttled import ThrottledStore

__all__ = ["WRAPPERS", "CountingStore", "DelayedStore", "FaultyStore", "ShortStore", "ThrottledStore", "WrappedStore"]

WRAPPERS: dict[str, type[WrappedStore]] = {
    wrapper.NAME: wrapper for wrapper in (CountingStore, DelayedStore, FaultyStore, ShortStore, ThrottledStore)
}
