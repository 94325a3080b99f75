"""Writers that are cancelled, at each step there is: the file is old or new, and nothing of the writer stays."""

import pytest
import trio

from stripefs.layout.striped import Manifest
from stripefs.write import DraftLost, Layout
from tests.unit.write.world import LAYOUTS, MIB, content, hidden, load, save, spread, until, writing

OLD = content(3000, seed=2)
DATA = content(MIB + 77)


class CancelAt(trio.abc.Instrument):
    """Cancels `scope` when the task that makes this has run for `left` more steps."""

    def __init__(self, scope, left):
        self._task, self._scope, self._left = trio.lowlevel.current_task(), scope, left

    def after_task_step(self, task):
        if task is self._task:
            self._left -= 1
            if not self._left:
                self._scope.cancel()


async def write(draft):
    for at in range(0, len(DATA), 300_000):
        await draft.write(at, DATA[at : at + 300_000])
        if at in (0, 600_000):
            await draft.sync()
    await draft.publish(final=False)


async def cut_off(draft, step):
    """Whether there was such a step."""
    with trio.CancelScope() as scope:
        watch = CancelAt(scope, step)
        trio.lowlevel.add_instrument(watch)
        try:
            await write(draft)
        finally:
            trio.lowlevel.remove_instrument(watch)
    return scope.cancelled_caught


def rubbish(root, layout):
    """Hidden files that nothing needs."""
    found = hidden(root)
    if layout is not Layout.STRIPED:  # a join that was under way may still make its file, which is then for gc
        return {name for name in found if name.endswith("-record")}
    data = (root / "file").read_bytes()
    if data == OLD:
        return found
    used = Manifest.from_bytes(data).versions
    return {name for name in found if not name.startswith(tuple(f".stripefs/{version}/" for version in used))}


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_at_each_step(tmp_path, layout):
    step = 0
    there_are_more = True
    while there_are_more:
        step += 1
        root = tmp_path / str(step)
        root.mkdir()
        store = spread(root)
        async with writing(store, layout=layout) as drafts:
            await save(drafts, b"/file", OLD)
            draft = await drafts.begin(b"/file", replacing=store.stat(b"/file").identity)
            there_are_more = await cut_off(draft, step)
            try:
                await draft.publish(final=False)
            except DraftLost:
                pass
            else:
                assert load(store, b"/file") == DATA[: draft.length], step
            await draft.abandon()
            await until(lambda root=root: not rubbish(root, layout))
            assert drafts.status()["memory_bytes"] == 0
            assert drafts.status()["parts_under_way"] == drafts.status()["parts_waiting"] == 0
            assert load(store, b"/file") in (OLD, DATA[: draft.length]), step


async def test_a_manifest_that_comes_late_finds_its_parts(tmp_path):
    """Renaming it takes longer than anybody waits; the writer gives up, and then it stands all the same."""
    store = spread(tmp_path)
    begun, rename = trio.Event(), store.rename
    token = trio.lowlevel.current_trio_token()

    def renamed(source, target, **how):
        rename(source, target, **how)
        if target == b"/file":
            trio.from_thread.run_sync(begun.set, trio_token=token)
            trio.from_thread.run(trio.sleep, 0.5, trio_token=token)

    async with writing(store, layout=Layout.STRIPED) as drafts:
        await save(drafts, b"/file", OLD)
        draft = await drafts.begin(b"/file", replacing=store.stat(b"/file").identity)
        await draft.write(0, DATA)
        store.rename = renamed
        async with trio.open_nursery() as nursery:
            nursery.start_soon(draft.publish, True)
            await begun.wait()
            nursery.cancel_scope.cancel()
        assert load(store, b"/file") == DATA
