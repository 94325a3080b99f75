"""Writers that are cancelled, at each step there is: the file is old or new, and nothing of the writer stays."""

import contextlib

import pytest
import trio

from stripefs.errors import Busy, ServiceDown
from stripefs.format.manifest import Manifest
from stripefs.store import local_write
from stripefs.write import DraftLost, Layout
from tests.support.uploads import (
    LAYOUTS,
    MIB,
    Held,
    begin_with,
    content,
    hidden,
    load,
    locks,
    save,
    spread,
    until,
    writing,
)

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


async def write(upload):
    for at in range(0, len(DATA), 300_000):
        await upload.write(at, DATA[at : at + 300_000])
        if at in (0, 600_000):
            await upload.sync()
    await upload.publish(final=False)


async def cut_off(upload, step):
    """True if there was such a step."""
    with trio.CancelScope() as scope:
        watch = CancelAt(scope, step)
        trio.lowlevel.add_instrument(watch)
        try:
            await write(upload)
        finally:
            trio.lowlevel.remove_instrument(watch)
    return scope.cancelled_caught


def rubbish(root, layout):
    """Hidden files that nothing needs."""
    found = hidden(root)
    data = (root / "file").read_bytes()
    if layout is not Layout.STRIPED or data == OLD:
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
        async with writing(store, layout=layout) as uploads:
            await save(uploads, b"/file", OLD)
            upload = await uploads.begin(b"/file", replacing=store.stat(b"/file").identity)
            there_are_more = await cut_off(upload, step)
            try:
                await upload.publish(final=False)
            except DraftLost:
                pass
            else:
                assert load(store, b"/file") == DATA[: upload.length], step
            await upload.abandon()
            await until(lambda root=root: not rubbish(root, layout))
            assert uploads.status()["memory_bytes"] == 0
            assert uploads.status()["parts_under_way"] == uploads.status()["parts_waiting"] == 0
            assert load(store, b"/file") in (OLD, DATA[: upload.length]), step


async def test_a_manifest_that_comes_late_finds_its_parts(store):
    """Renaming it takes longer than anybody waits; the writer gives up, and then it stands all the same."""
    begun, rename = trio.Event(), store.rename
    token = trio.lowlevel.current_trio_token()

    def renamed(source, target, **how):
        rename(source, target, **how)
        if target == b"/file":
            trio.from_thread.run_sync(begun.set, trio_token=token)
            trio.from_thread.run(trio.sleep, 0.5, trio_token=token)

    async with writing(store, layout=Layout.STRIPED) as uploads:
        await save(uploads, b"/file", OLD)
        upload = await begin_with(uploads, DATA, replacing=store.stat(b"/file").identity)
        store.rename = renamed
        async with trio.open_nursery() as nursery:
            nursery.start_soon(upload.publish, True)
            await begun.wait()
            nursery.cancel_scope.cancel()
        assert load(store, b"/file") == DATA


@contextlib.asynccontextmanager
async def closing_cut_off(store, upload, name="rename"):
    """The upload's last step, which is cut off, does not come before the end of this."""
    held = Held(store, name, lambda *paths: b"/file" in paths)
    await cut_off_while(held, upload.publish, True)
    yield
    held.release()
    await until(lambda: held.ended)


async def cut_off_while(held, call, *args):
    """`call` is cancelled when `held` has begun."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, *args)
        await until(lambda: held.begun)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("size", [1000, len(DATA)])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_close_that_is_cut_off_before_its_last_step(store, tmp_path, layout, size):
    """The version is withdrawn, so that the name is free at once, and is not published later."""
    async with writing(store, layout=layout) as uploads:
        await save(uploads, b"/file", OLD)
        upload = await begin_with(uploads, DATA[:size], replacing=store.stat(b"/file").identity)
        async with closing_cut_off(store, upload):
            assert not hidden(tmp_path)
        assert load(store, b"/file") == OLD


@pytest.mark.parametrize("size", [1000, len(DATA)])
@pytest.mark.parametrize(
    ("layout", "durable"), [*((layout, False) for layout in LAYOUTS), (Layout.CONCAT, True), (Layout.PLAIN, True)]
)
async def test_a_close_whose_last_step_is_not_taken_back(store, tmp_path, layout, durable, size, caplog):
    """The lock stays, and with it everybody else out, until it runs out: nobody knows what comes.

    durable: fsync has made the bytes that. Else they cannot be removed."""
    remove = store.remove

    def refuse(path):
        if not path.endswith(b"-lock"):
            raise ServiceDown("away")
        remove(path)

    async with writing(store, layout=layout) as uploads:
        await save(uploads, b"/file", OLD)
        upload = await begin_with(uploads, DATA[:size], replacing=store.stat(b"/file").identity)
        if durable:
            await upload.sync()
        else:
            store.remove = refuse
        async with closing_cut_off(store, upload):
            assert locks(tmp_path) == {".file.stripefs-lock"}
            assert "stays until it runs out" in caplog.text
            assert any(name.endswith("-record") for name in hidden(tmp_path)) == durable
        assert load(store, b"/file") == DATA[:size]


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_the_next_writer_takes_back_what_may_yet_come(store, tmp_path, layout):
    """Through the same mount, to which the lock is no hindrance. Until that is done it is told to wait."""
    remove = store.remove

    def refuse(path):
        raise ServiceDown("away")

    async with writing(store, layout=layout) as uploads:
        upload = await begin_with(uploads, DATA)
        store.remove = refuse
        async with closing_cut_off(store, upload):
            for _ in range(2):
                with pytest.raises(Busy):
                    await uploads.begin(b"/file", replacing=None)
            store.remove = remove
            after = await uploads.begin(b"/file", replacing=None)
        assert not (tmp_path / "file").exists()
        await after.publish(final=True)
        assert not locks(tmp_path)
    assert load(store, b"/file") == b""


@pytest.mark.parametrize("layout", [Layout.CONCAT, Layout.STRIPED])
async def test_the_lock_does_not_wait_for_parts_that_hang(store, tmp_path, layout):
    async with writing(store, layout=layout, io_timeout=2.0) as uploads:
        upload = await uploads.begin(b"/file", replacing=None)
        held = Held(store, "create")
        await upload.write(0, DATA)
        await cut_off_while(held, upload.publish, True)
        assert not locks(tmp_path)
        held.release()
        await until(lambda: not hidden(tmp_path))
        assert not (tmp_path / "file").exists()


async def test_a_join_behind_what_is_published(store, tmp_path):
    async with writing(store, layout=Layout.CONCAT) as uploads:
        upload = await begin_with(uploads, DATA)
        await upload.publish(final=False)
        await upload.write(len(DATA), DATA)
        async with closing_cut_off(store, upload, "concat"):
            assert locks(tmp_path) == {".file.stripefs-lock"}
        assert load(store, b"/file") in (DATA, 2 * DATA)


async def test_a_join_that_comes_late_leaves_nothing(store, tmp_path, monkeypatch):
    """A local directory knows no join in one step: what is gone by then is read all the same, and gets its name."""
    monkeypatch.setattr(local_write, "_copy", local_write._copy)  # put back in the end
    held = Held(local_write, "_copy")
    async with writing(store, layout=Layout.CONCAT, memory=MIB) as uploads:  # so little makes several parts
        upload = await begin_with(uploads, DATA)
        await cut_off_while(held, upload.publish, True)
        joined = Held(store, "remove")
        held.release()
        joined.release()
        await until(lambda: joined.begun)
        await until(lambda: not hidden(tmp_path))


@pytest.mark.parametrize("stage", ["begin", "moving"])
async def test_a_lock_that_comes_late_is_let_go(store, tmp_path, stage):
    (tmp_path / "d").mkdir()
    async with writing(store) as uploads:

        async def move(upload):
            async with upload.moving(b"/d/file"):
                raise AssertionError("it cannot come to that")

        upload = await uploads.begin(b"/file", replacing=None) if stage == "moving" else None
        held = Held(store, "put")
        if upload is None:
            await cut_off_while(held, lambda: uploads.begin(b"/file", replacing=None))
        else:
            await cut_off_while(held, move, upload)
            assert upload.path == b"/file"
        held.release()
        await until(lambda: held.ended)
        await until(lambda: locks(tmp_path) == ({".file.stripefs-lock"} if upload else set()))
        again = upload or await uploads.begin(b"/file", replacing=None)
        await again.publish(final=True)
    assert load(store, b"/file") == b""
