"""A writer dies in each state of a commit: readers see one whole version, and recovery has what the state promises."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stripefs.errors import NotFound, StoreError
from stripefs.gc.collect import Collection
from stripefs.gc.recover import recover
from stripefs.store.striped import StripedStore
from stripefs.write import Layout
from stripefs.write.commit import Commit, CommitState
from tests.model.mounts import Client
from tests.support.uploads import MIB, age, beside, content, load, save, spread, writing

DAY = 86_400.0

ORDER = [
    CommitState.WRITING,
    CommitState.DURABLE,
    CommitState.STAGED,
    CommitState.HELD,
    CommitState.ISSUED,
    CommitState.VISIBLE,
    CommitState.PUBLISHED,
]


def watch(monkeypatch: pytest.MonkeyPatch, seen: Callable[[CommitState], None]) -> None:
    """`seen` is called with each state that a commit comes to."""

    def enter(commit: Commit, state: CommitState) -> None:
        vars(commit)["state"] = state
        seen(state)

    monkeypatch.setattr(Commit, "state", property(lambda commit: vars(commit)["state"], enter), raising=False)


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("state", ORDER)
@pytest.mark.parametrize(
    ("layout", "size"),
    [(Layout.CONCAT, 1000), (Layout.CONCAT, MIB + 77), (Layout.STRIPED, MIB + 77), (Layout.PLAIN, MIB + 77)],
)
async def test_a_writer_that_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Layout, size: int, state: CommitState, append: bool
) -> None:
    mortal = Client(spread(tmp_path))
    old, data = content(size, seed=2), content(size)
    new = old + data if append else data
    seen: list[CommitState] = []

    def die(now: CommitState) -> None:
        seen.append(now)
        if now is state:
            mortal.kind, mortal.countdown = "away", 0  # once it is dead no call has an effect

    async with writing(mortal, layout=layout, io_timeout=0.5) as uploads:
        await save(uploads, b"/file", old)
        replacing = StripedStore(mortal).stat(b"/file").identity
        upload = await uploads.begin(b"/file", replacing=replacing, append=append)
        await upload.write(upload.length, data)
        await upload.sync()
        with monkeypatch.context() as patch:
            watch(patch, die)
            with contextlib.suppress(StoreError):
                await upload.publish(final=False)

    assert list(dict.fromkeys(seen)) == [each for each in ORDER if each in seen], "the states come in their order"
    assert state in seen or (state is CommitState.DURABLE and size == 1000)
    store = spread(tmp_path)
    published = state in (CommitState.VISIBLE, CommitState.PUBLISHED) or state not in seen
    assert load(store, b"/file") == (new if published else old)
    if (tmp_path / ".file.stripefs-lock").exists():
        age(tmp_path)
    if published:
        with pytest.raises(NotFound):
            recover(store, StripedStore(store), b"/file", to=b"/file")
    else:
        recover(store, StripedStore(store), b"/file", to=b"/file")
    assert load(store, b"/file") == new
    for path in tmp_path.rglob("*"):
        os.utime(path, ns=(0, path.stat().st_mtime_ns - int(8 * DAY * 1e9)))
    Collection(store, StripedStore(store)).run()
    assert load(store, b"/file") == new
    assert beside(tmp_path) == set()
