"""Fencing: of two writers that both believe to have the name, the later one's version stands and the other is told."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from stripefs.errors import ServiceDown, StaleVersion, Transient
from stripefs.gc.recover import recover
from stripefs.store.striped import StripedStore
from stripefs.testing.faults import FaultyStore
from stripefs.testing.throttled import ThrottledStore
from stripefs.write import DraftLost, FileUpload, Layout
from stripefs.write.file_lock import acquire
from tests.support.uploads import DEADLINE, LAYOUTS, MIB, age, begin_with, content, load, save, spread, writing

OLD, NEXT = content(3000, seed=2), content(5000, seed=3)
SIZES = [1000, MIB + 77]


def during(store: Any, name: str, between: Callable[[], None], *, after: bool = False) -> None:
    """The next call of this method on /file is held up while `between` runs; after: when it has had its effect."""
    call = getattr(store, name)

    def held(*arguments: Any, **options: Any) -> None:
        if b"/file" not in arguments[:2]:
            return call(*arguments, **options)
        setattr(store, name, call)
        if after:
            call(*arguments, **options)
        between()
        if after:
            raise ServiceDown("the answer was lost")
        return call(*arguments, **options)

    setattr(store, name, held)


def other_writer(root: Path, data: bytes, *, append: bool = False, layout: Layout = Layout.CONCAT) -> None:
    """Another host takes over and publishes; in a thread of its own, where there is no event loop yet."""

    async def write() -> None:
        store = spread(root)
        async with writing(store, layout=layout) as uploads:
            replacing = StripedStore(store).stat(b"/file").identity if (root / "file").exists() else None
            upload = await uploads.begin(b"/file", replacing=replacing, append=append)
            await upload.write(upload.length, data)
            await upload.publish(final=True)

    age(root)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(trio.run, write).result(DEADLINE)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("after", [False, True], ids=["right before it", "right after it"])
@pytest.mark.parametrize("renamed", [None, b"/before", b"/d/before"])
async def test_a_writer_that_sleeps_at_the_step_overwrites_nobody(
    store: ThrottledStore, tmp_path: Path, layout: Layout, size: int, after: bool, renamed: bytes | None
) -> None:
    """Its lock was compared, and its rename reaches the store when another writer has long published; or its version
    stood for a moment, and the answer is lost: it is told that it may be lost, never that it stands.

    renamed: the name that the file had before, when it was begun."""
    (tmp_path / "d").mkdir()
    async with writing(store, layout=layout) as uploads:
        if renamed is None:
            await save(uploads, b"/file", OLD)
            upload = await begin_with(uploads, content(size), replacing=store.stat(b"/file").identity)
        else:
            upload = await begin_with(uploads, content(size), renamed)
            await upload.sync()
            async with upload.moving(b"/file"):
                pass
        during(store, "rename", lambda: other_writer(tmp_path, NEXT), after=after)
        with pytest.raises(DraftLost):
            await upload.publish(final=True)
    assert load(store, b"/file") == NEXT


@pytest.mark.parametrize("length", [0, 77])
async def test_a_join_that_was_held_up_goes_behind_nobody_elses_bytes(
    store: ThrottledStore, tmp_path: Path, length: int
) -> None:
    """Also where the other writer has appended just as many bytes to the same file, so that it looks as if done."""
    data, more = content(MIB), content(MIB // 2, seed=5)
    theirs = content(len(more) - length, seed=6)
    async with writing(store, layout=Layout.CONCAT) as uploads:
        await save(uploads, b"/file", data)
        upload = await begin_with(uploads, more, replacing=store.stat(b"/file").identity, append=True)
        during(store, "concat", lambda: other_writer(tmp_path, theirs, append=True))
        with pytest.raises((DraftLost, StaleVersion)):
            await upload.publish(final=True)
    assert load(store, b"/file") == data + theirs


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_an_answer_that_was_lost_and_a_lock_that_somebody_else_took(
    store: ThrottledStore, tmp_path: Path, layout: Layout
) -> None:
    """The version is there, and the next writer has not published: that is success."""
    data, locks = content(MIB + 9), []

    def take_over() -> None:
        age(tmp_path)
        locks.append(acquire(spread(tmp_path), b"/file"))

    async with writing(store, layout=layout) as uploads:
        upload = await begin_with(uploads, data)
        during(store, "rename", take_over, after=True)
        await upload.publish(final=True)
        locks[0].check()  # which the writer before has not let go
    assert load(store, b"/file") == data


@pytest.mark.parametrize("when", ["before", "at the step"])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_what_is_renamed_to_a_new_files_name_stays(
    store: ThrottledStore, tmp_path: Path, layout: Layout, when: str
) -> None:
    """By somebody who looked for locks before this one was taken, or does not know them."""
    (tmp_path / "other").write_bytes(b"theirs")
    async with writing(store, layout=layout) as uploads:
        upload = await begin_with(uploads, content(MIB + 9))

        def rename() -> None:
            (tmp_path / "other").rename(tmp_path / "file")

        if when == "before":
            rename()
        else:
            during(store, "rename", rename)
        with pytest.raises(StaleVersion, match="somebody else"):
            await upload.publish(final=True)
    assert (tmp_path / "file").read_bytes() == b"theirs"


def ended(upload: FileUpload, left: float = -1.0) -> None:
    """The clock of this host says that the lease has ended, until it is renewed."""
    lock = upload._locks._lock
    assert lock is not None
    lock._reading = replace(lock._reading, at=lock._reading.at - lock.left + left)


@pytest.mark.parametrize("call", ["write", "sync", "publish"])
async def test_a_lease_that_has_ended_and_cannot_be_renewed_is_an_error_for_the_writer(
    store: ThrottledStore, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The store is away, so nobody knows who has the lock: an error, and once it is back writing goes on."""
    faulty = FaultyStore(store, rate=0.0, on=("stat", "set_attributes"), kinds=("service",))
    stat = faulty.stat

    def away(path: bytes) -> Any:
        raise ServiceDown("away")

    async with writing(faulty, io_timeout=0.3) as uploads:
        upload = await begin_with(uploads, OLD)
        ended(upload)
        monkeypatch.setattr(faulty, "stat", away)
        calls = {
            "write": lambda: upload.write(len(OLD), b"x"),
            "sync": upload.sync,
            "publish": lambda: upload.publish(final=False),
        }
        with pytest.raises(Transient):
            await calls[call]()
        monkeypatch.setattr(faulty, "stat", stat)
        await upload.publish(final=True)
    assert load(store, b"/file") == OLD


async def test_a_lease_that_ends_while_a_step_is_tried_again(
    store: ThrottledStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No try begins after the end, not the first one either: the lock is renewed first."""
    async with writing(store) as uploads:
        upload = await begin_with(uploads, OLD)
        ended(upload)
        rename, tries = store.rename, []

        def refused(source: bytes, target: bytes, **options: Any) -> None:
            if target == b"/file":
                assert upload._locks.left > 0
                tries.append(target)
                if len(tries) < 3:
                    ended(upload)
                    raise ServiceDown("away")
            rename(source, target, **options)

        monkeypatch.setattr(store, "rename", refused)
        await upload.publish(final=True)
    assert len(tries) == 3
    assert load(store, b"/file") == OLD


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_taking_over_keeps_what_fsync_made_durable(
    store: ThrottledStore, tmp_path: Path, layout: Layout, size: int
) -> None:
    """A dead writer's parts that are moved out of the way are found by `stripefs recover`."""
    data = content(size)
    async with writing(store, layout=layout, memory=MIB) as uploads:
        upload = await begin_with(uploads, data)
        await upload.sync()
        age(tmp_path)
        lock = acquire(store, b"/file")
        lock.release()
        recover(store, StripedStore(store), b"/file", to=b"/recovered")
        assert load(store, b"/recovered") == data
        with pytest.raises(DraftLost):
            await upload.publish(final=True)
