"""Locks of all files that a mount writes, while some cannot be renewed."""

import os
import threading

from tests.support.uploads import DEADLINE, until, writing


async def test_a_lock_that_takes_long_to_renew_holds_up_no_other(store, tmp_path):
    gate, change = threading.Event(), store.set_attributes

    def gated(path, attributes):
        if b"slow" in path:
            assert gate.wait(DEADLINE)
        change(path, attributes)

    def renewed(name):
        return os.stat(tmp_path / f".{name}.stripefs-lock").st_mtime_ns

    store.set_attributes = gated
    async with writing(store, lease=0.6) as uploads:
        slow = await uploads.begin(b"/slow", replacing=None)
        fast = await uploads.begin(b"/fast", replacing=None)
        before, times = renewed("slow"), set()

        def often():
            times.add(renewed("fast"))
            return len(times) > 5

        await until(often)
        assert renewed("slow") == before
        gate.set()
        await until(lambda: renewed("slow") > before)
        await slow.publish(final=True)
        await fast.publish(final=True)
