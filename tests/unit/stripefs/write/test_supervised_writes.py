"""Bugs and panics below the tasks that run beside writers: the files that are open are published all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from stripefs.store.base import Store
from stripefs.write.upload import FileUpload
from tests.support.uploads import MIB, begin_with, content, load, save, until, writing


class Panic(BaseException):
    """As pyo3's PanicException."""


def broken(error: BaseException, made: list[int]) -> Callable[..., object]:
    def call(*_: object, **__: object) -> None:
        made.append(1)
        raise error

    return call


@pytest.mark.parametrize("below", ["renewals", "hosts"])
@pytest.mark.parametrize("error", [ValueError("a bug"), Panic("rust")])
async def test_a_panic_below_a_task_ends_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: BaseException, below: str
) -> None:
    made: list[int] = []
    call = broken(error, made)

    async def renewed(upload: FileUpload, *_: object) -> None:
        call(upload)

    data = content(MIB)
    monkeypatch.setattr("stripefs.write.uploader.FRESH", 0.0)
    async with writing(store, lease=0.3) as uploads:  # renewed every 0.1 s
        upload = await begin_with(uploads, data)
        if below == "renewals":
            monkeypatch.setattr(FileUpload, "renew", renewed)
        else:
            monkeypatch.setattr(store, "hosts", call)
        await until(lambda: len(made) > 2)
        await upload.publish(final=True)
    assert load(store, b"/file") == data


async def test_a_bug_in_sending_fails_one_file(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    data = content(MIB)
    async with writing(store) as uploads:
        sender = uploads._shared.uploader
        succeeded = sender.hosts.succeeded
        monkeypatch.setattr(sender.hosts, "succeeded", broken(Panic("rust"), []))
        with pytest.raises(Exception, match="failed unexpectedly"), trio.fail_after(30):
            await save(uploads, b"/lost", data)
        monkeypatch.setattr(sender.hosts, "succeeded", succeeded)
        await save(uploads, b"/f", data)
    assert load(store, b"/f") == data


async def test_a_bug_in_giving_one_file_up_leaves_no_lock_of_another(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up: list[bytes] = []
    abandon = FileUpload.abandon

    async def abandoned(upload: FileUpload, *, recoverable: bool = False) -> None:
        if upload.path == b"/1" and b"/1" not in given_up:
            given_up.append(upload.path)
            raise RuntimeError("a bug")
        await trio.sleep(0)
        await abandon(upload, recoverable=recoverable)
        given_up.append(upload.path)

    async with writing(store) as uploads:
        for path in (b"/1", b"/2"):
            await (await uploads.begin(path, replacing=None)).write(0, b"x")
        monkeypatch.setattr(FileUpload, "abandon", abandoned)
        await uploads.aclose()
        assert b"/2" in given_up
    async with writing(store) as uploads:
        await save(uploads, b"/2", b"again")
    assert load(store, b"/2") == b"again"
