"""Staged files: like plain files until they are published, and whole or not at all then."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from stripefs.errors import ConfigError, HostFailed, NoSpace, StoreError
from stripefs.store.base import Buffer, Kind, Status
from stripefs.write import staged_file as staging_file
from stripefs.write.staged_file import CHUNK
from stripefs.write.staging import Staging
from tests.support.uploads import MIB


@dataclasses.dataclass(eq=False)
class FakeDraft:
    """A draft that keeps what it is given, and fails when told to."""

    version: bytes = b""
    durable: bytes = b""
    rewinds: int = 0
    failing: Exception | None = None
    _written: bytearray = dataclasses.field(default_factory=bytearray)

    async def rewind(self) -> None:
        self.rewinds += 1
        self._written.clear()

    async def write(self, offset: int, data: Buffer) -> None:
        await trio.lowlevel.checkpoint()
        assert offset == len(self._written)
        if self.failing is not None:
            raise self.failing
        self._written += data

    async def sync(self) -> None:
        self.durable = bytes(self._written)

    async def publish(self, final: bool) -> Status:
        self.version = bytes(self._written)
        return Status(b"f", Kind.FILE, len(self.version))


@pytest.fixture
def staging(tmp_path: Path) -> Iterator[Staging]:
    made = Staging(str(tmp_path), 64 * CHUNK, "/mnt")
    yield made
    assert made.used == 0, "a test left something staged"
    made.close()


def reading(data: bytes) -> Callable[[int, int], object]:
    async def read(offset: int, size: int) -> bytes:
        await trio.lowlevel.checkpoint()
        return data[offset : offset + size]

    return read


PLACES = st.builds(lambda chunk, at: chunk * CHUNK + at, st.integers(0, 3), st.integers(0, CHUNK))
STEPS = st.one_of(
    st.tuples(st.just("write"), PLACES, st.binary(max_size=100)),
    st.tuples(st.just("truncate"), PLACES, st.just(b"")),
    st.tuples(st.sampled_from(["publish", "sync", "away"]), st.just(0), st.just(b"")),
)


PUBLISH, SYNC = ("publish", 0, b""), ("sync", 0, b"")
MENDED = [
    *(("write", 0, b"a"), ("write", 2 * CHUNK - 1, b"bb"), PUBLISH, ("write", CHUNK, b"c"), ("write", 2 * CHUNK, b"d")),
    *(PUBLISH, SYNC, ("write", 2 * CHUNK - 1, b"e"), PUBLISH, ("truncate", 2 * CHUNK, b""), SYNC, PUBLISH, PUBLISH),
    *(("write", 2 * CHUNK, b"f"), ("truncate", CHUNK, b""), ("write", 2 * CHUNK, b"f"), PUBLISH),
]


@example(b"", MENDED)
@given(st.binary(max_size=200), st.lists(STEPS, max_size=12))
def test_like_a_plain_file(
    tmp_path_factory: pytest.TempPathFactory, begin: bytes, steps: list[tuple[str, int, bytes]]
) -> None:
    """There is room for two chunks. A write that finds none changes nothing, and until it is made good or cut off
    nothing is published. Bytes that fsync sent are not sent again; failed ones are. away: the store does not answer."""

    async def main() -> None:
        staging = Staging(str(tmp_path_factory.getbasetemp()), 3 * CHUNK, "/mnt")
        staged, upload, model = await staging.new(), FakeDraft(), bytearray(begin)
        held, failed = set(range(bool(begin))), set[int]()
        dirty, sent, sendings = False, False, 0
        await staged.fill(reading(begin), len(begin))  # type: ignore[arg-type]
        for what, at, data in steps:
            if what == "write":
                chunks = held.union(range(at // CHUNK, -(-(at + len(data)) // CHUNK))) if data else held
                with pytest.raises(NoSpace, match="staging-size") if len(chunks) > 2 else contextlib.nullcontext():
                    await staged.write(at, data)
                if len(chunks) > 2:
                    failed.update(range(at, at + len(data)))
                elif data:
                    model.extend(bytes(max(0, at - len(model))))
                    model[at : at + len(data)] = data
                    held, failed = chunks, failed.difference(range(at, at + len(data)))
            elif what == "truncate":
                await staged.truncate(at)
                model[at:] = bytes(max(0, at - len(model)))
                held, failed = {each for each in held if each * CHUNK < at}, {each for each in failed if each < at}
            else:
                before = upload.version, upload.durable
                publish = staged.publish(upload, False) if what == "publish" else staged.sync(upload)  # type: ignore[arg-type]
                upload.failing = HostFailed("away") if what == "away" and model and not sent else None
                refused = (NoSpace if failed else HostFailed) if failed or upload.failing else ()
                with pytest.raises(refused) if refused else contextlib.nullcontext():
                    await publish
                sendings += not failed and not sent
                if refused:
                    assert (upload.version, upload.durable) == before
                else:
                    assert (upload.version if what == "publish" else upload.durable) == model
                sent = not refused
                dirty = dirty and (what != "publish" or bool(refused))
            if what in ("write", "truncate"):
                dirty, sent = True, False
            assert (staged.dirty, upload.rewinds) == (dirty, sendings)
            assert staged.length == len(model)
        assert await staged.read(0, len(model) + 10) == model
        assert await staged.read(len(model) // 2, 5) == model[len(model) // 2 :][:5]
        await staged.close()
        staging.close()

    trio.run(main)


@pytest.mark.parametrize("nameless", [True, False])
async def test_nothing_has_a_name(
    staging: Staging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nameless: bool
) -> None:
    """Where the disk knows no files without a name, the name goes at once."""
    real = os.open

    def refusing(path: str, flags: int, *args: int, **more: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE and not nameless:
            raise OSError(errno.EOPNOTSUPP, "")
        return real(path, flags, *args, **more)

    monkeypatch.setattr(staging_file.os, "open", refusing)
    staged = await staging.new(b"f")
    await staged.write(3, b"abc")
    assert await staged.read(0, 10) == b"\0\0\0abc"
    assert [entry.name for entry in tmp_path.iterdir()] == [".stripefs-staging"]
    assert staging.used == CHUNK
    await staged.close()
    await staged.close()
    assert staging.used == 0
    with pytest.raises(StoreError, match="closed"):
        await staged.write(0, b"x")


async def test_a_full_disk_is_like_a_full_bound(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = await staging.new(b"f")
    real = os.pwrite

    def full(descriptor: int, data: Buffer, offset: int) -> int:
        if offset >= 4096 and len(data) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data[: 4096 - offset], offset)

    monkeypatch.setattr(staging_file.os, "pwrite", full)
    with pytest.raises(NoSpace):
        await staged.write(0, b"x" * 5000)
    assert staged.length == 0
    with pytest.raises(NoSpace):
        await staged.publish(FakeDraft(), True)
    await staged.close()


async def test_content_that_comes_short_is_refused(staging: Staging) -> None:
    staged = await staging.new(b"f")
    with pytest.raises(StoreError, match="10 bytes came"):
        await staged.fill(reading(bytes(10)), 20)  # type: ignore[arg-type]
    await staged.close()


async def test_writes_wait_for_a_publication(staging: Staging) -> None:
    """A publication has one moment's content, whatever is written meanwhile."""
    staged, upload = await staging.new(b"f"), FakeDraft()
    await staged.write(0, b"a" * (3 * MIB))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(staged.publish, upload, False)
        await trio.testing.wait_all_tasks_blocked(0.001)
        await staged.write(0, b"b" * (3 * MIB))
    assert upload.version == b"a" * (3 * MIB)
    assert staged.dirty
    await staged.publish(upload, True)
    assert upload.version == b"b" * (3 * MIB)
    await staged.close()


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--staging-size"):
        Staging(str(tmp_path), 0, "/mnt")
    with pytest.raises(ConfigError, match="--staging"):
        Staging(str(tmp_path / "absent"), MIB, "/mnt")
    (tmp_path / ".stripefs-staging").symlink_to("elsewhere")
    with pytest.raises(ConfigError, match="cannot be used"):
        Staging(str(tmp_path), MIB, "/mnt")
