"""A file that fsync made durable is recovered after the writer died, whole or as far as it is intact."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from stripefs.errors import Busy, NotFound, StoreError
from stripefs.format.lock_and_record import DocumentError, Record
from stripefs.gc.recover import RecoveryPlan, recover
from stripefs.store.base import Attributes, Store
from stripefs.store.striped import StripedStore
from stripefs.write import Layout
from stripefs.write.file_lock import acquire
from stripefs.write.upload import FileUpload
from tests.model.mounts import Client, Died
from tests.support.uploads import KIB, LAYOUTS, MIB, content, hidden, load, save, spread, writing

SIZE = 3 * MIB + 12345


@asynccontextmanager
async def dying(store: Store, path: bytes, **begin: object) -> AsyncIterator[FileUpload]:
    """A draft whose writer dies without publishing: its record stays, and its lock is gone, as after a minute."""
    layout = begin.pop("layout", Layout.CONCAT)
    async with writing(store, layout=layout) as uploads:
        upload = await uploads.begin(path, **{"replacing": None, **begin})  # type: ignore[arg-type]
        yield upload
        await upload.abandon(recoverable=True)


async def synced(store: Store, path: bytes, data: bytes, *, then: bytes = b"", **begin: object) -> None:
    """Write `data` in three fsyncs and die, `then` written and not made durable."""
    async with dying(store, path, **begin) as upload:
        third = len(data) // 3
        start = upload.length
        for piece in (data[:third], data[third : 2 * third], data[2 * third :]):
            await upload.write(upload.length, piece)
            await upload.sync()
        assert upload.length == start + len(data)
        await upload.write(upload.length, then)


def run(store: Store, path: bytes, **options: object) -> RecoveryPlan:
    return recover(store, StripedStore(store), path, **options)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return spread(tmp_path)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [100, 50 * KIB, SIZE])
async def test_what_was_durable_comes_back(store: Store, tmp_path: Path, layout: Layout, size: int) -> None:
    """Also where the directory was moved since."""
    data = content(size)
    os.mkdir(tmp_path / "before")
    await synced(store, b"/before/model", data, then=content(300 * KIB), layout=layout, attributes=Attributes(0o640))
    os.rename(tmp_path / "before", tmp_path / "run")
    before = hidden(tmp_path)
    tried = run(store, b"/run/model", dry_run=True)
    assert (tried.length, tried.complete, tried.lost) == (size, True, "")
    assert hidden(tmp_path) == before
    assert not (tmp_path / "run/model").exists()

    assert run(store, b"/run/model").length == size
    assert load(store, b"/run/model") == data
    assert store.stat(b"/run/model").mode == 0o640
    # Bytes written after the fsync are left for gc.
    assert not [name for name in hidden(tmp_path) if "record" in name or "lock" in name or "draft" in name]
    with pytest.raises(NotFound, match="no record"):
        run(store, b"/run/model")


async def test_what_continued_a_version_that_is_gone_is_refused(store: Store) -> None:
    before = content(2 * MIB)
    async with writing(store) as uploads:
        await save(uploads, b"/model", before)
        identity = StripedStore(store).stat(b"/model").identity
    await synced(store, b"/model", content(SIZE, 2), replacing=identity, append=True)
    async with writing(store) as uploads:
        await save(uploads, b"/model", b"newer", replacing=identity)
    with pytest.raises(StoreError, match="changed since"):
        run(store, b"/model")
    assert load(store, b"/model") == b"newer"


def part_of(root: Path, segment: int) -> Path:
    (found,) = root.rglob("*-record")
    record = Record.from_bytes(found.read_bytes())
    return root / record.segments[segment].parts[0].path.decode().lstrip("/")


@pytest.mark.parametrize("layout", [Layout.CONCAT, Layout.STRIPED])
@pytest.mark.parametrize("damage", ["missing", "short", "changed"])
async def test_as_far_as_it_is_intact(store: Store, tmp_path: Path, layout: Layout, damage: str) -> None:
    data = content(SIZE)
    await synced(store, b"/model", data, layout=layout)
    part = part_of(tmp_path, -1)
    if damage == "missing":
        part.unlink()
    elif damage == "short":
        os.truncate(part, part.stat().st_size - 1)
    elif layout is Layout.STRIPED:
        with open(part, "r+b") as file:
            first = file.read(1)
            file.seek(0)
            file.write(bytes([first[0] ^ 1]))
    else:
        return  # a plain HDFS file holds no checksum that we could ask for
    found = run(store, b"/model")
    assert not found.complete
    assert found.lost
    assert 0 < found.length < SIZE
    assert load(store, b"/model") == data[: found.length]


async def test_nothing_intact_is_nothing_recovered(store: Store, tmp_path: Path) -> None:
    await synced(store, b"/model", content(SIZE), layout=Layout.STRIPED)
    part_of(tmp_path, 0).unlink()
    for options in ({}, {"dry_run": True}):
        with pytest.raises(StoreError, match="nothing of /model can be recovered"):
            run(store, b"/model", **options)
    assert not (tmp_path / "model").exists()


async def test_a_file_that_was_moved_while_it_was_written(store: Store, tmp_path: Path) -> None:
    os.mkdir(tmp_path / "a")
    os.mkdir(tmp_path / "b")
    data = content(SIZE)
    async with dying(store, b"/a/model") as upload:
        await upload.write(0, data)
        async with upload.moving(b"/b/renamed"):
            pass
        await upload.sync()
    run(store, b"/b/renamed")
    assert load(store, b"/b/renamed") == data


@pytest.mark.parametrize(
    ("layout", "carrier", "later"),
    [
        (Layout.CONCAT, "part", b""),
        (Layout.CONCAT, "draft", b""),
        (Layout.CONCAT, "part", b"later"),
        (Layout.PLAIN, "part", b"later"),
    ],
)
async def test_a_crash_while_parts_are_joined(
    store: Store, tmp_path: Path, layout: Layout, carrier: str, later: bytes
) -> None:
    """Bytes that came later and were joined too are as durable as those that the record names."""
    data = content(SIZE)
    await synced(store, b"/model", data, layout=layout)
    (found,) = tmp_path.rglob("*-record")
    record = Record.from_bytes(found.read_bytes())
    first, second, *others = (segment.parts[0].path for segment in record.segments)
    store.put(first + b"0", [later])
    store.concat(first, [second, *others, first + b"0"] if later else [second])
    if carrier == "draft":
        store.rename(first, f"/.model.stripefs-{record.version}-draft".encode())
    recovered = run(store, b"/model")
    assert (recovered.complete, recovered.length) == (True, SIZE + len(later))
    assert load(store, b"/model") == data + later


@pytest.mark.parametrize("targets", [[b"/model"], [b"/other"], [b"/model", b"/other"]])
@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("concat", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_recovery_that_dies_at_any_call_is_repeated(
    store: Store, tmp_path: Path, layout: Layout, append: bool, targets: list[bytes], concat: bool
) -> None:
    """Each try has the next of `targets`."""
    before, behind = content(2 * MIB) if append else b"", content(SIZE, 2)
    identity = None
    if append:
        async with writing(store, layout=layout) as uploads:
            await save(uploads, b"/model", before)
        identity = StripedStore(store).stat(b"/model").identity
    await synced(store, b"/model", behind, layout=layout, replacing=identity, append=append)
    whole = before + behind
    tried = itertools.cycle(targets)
    died = 0
    while True:
        client = Client(store)
        client.capabilities = replace(store.capabilities, concat=concat)
        client.kind, client.countdown = "before", died + 1
        target = next(tried)
        try:
            run(client, b"/model", to=b"" if target == b"/model" and layout is not Layout.STRIPED else target)
        except Died:
            died += 1
            for name in ("model", "other"):
                (tmp_path / f".{name}.stripefs-lock").unlink(missing_ok=True)  # it runs out
        except (StoreError, DocumentError):  # when the last one died it was published already
            break
        else:
            break
    assert died > 10
    published = {path: load(store, path) for path in (b"/model", b"/other") if (tmp_path / path[1:].decode()).exists()}
    assert whole in [published.get(target) for target in targets]
    assert all(data in (whole, before) for data in published.values())
    if append and b"/model" not in targets:
        assert published[b"/model"] == before


async def test_a_file_that_is_being_written_is_left_alone(store: Store, tmp_path: Path) -> None:
    await synced(store, b"/model", content(SIZE))
    before = hidden(tmp_path)
    lease = acquire(store, b"/model")
    with pytest.raises(Busy):
        run(store, b"/model", to=b"/other")
    lease.release()
    lease = acquire(store, b"/other")
    with pytest.raises(Busy):
        run(store, b"/model", to=b"/other")
    lease.release()
    assert hidden(tmp_path) == before
