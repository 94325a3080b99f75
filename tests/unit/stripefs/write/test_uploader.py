"""The queue of what is to be sent: who waits for a place, and what happens to the queue when things end."""

import itertools
from contextlib import asynccontextmanager

import pytest
import trio

from stripefs.errors import HostFailed, ServiceDown
from stripefs.write import DraftLost, Layout
from stripefs.write.parts import PartUpload
from stripefs.write.store_ops import StoreOps
from stripefs.write.stream_upload import StreamUpload
from stripefs.write.uploader import PER_HOST, Uploader
from tests.support.uploads import DEADLINE, MIB, Held, content, load, save, until, writing

HOSTS = 4


@asynccontextmanager
async def sending(store, io_timeout=5.0):
    """A sender that knows the hosts."""
    made = Uploader(store, StoreOps(store, io_timeout), io_timeout)
    with trio.fail_after(DEADLINE):
        async with trio.open_nursery() as nursery:
            await nursery.start(made.run)
            await made.look()
            yield made
            nursery.cancel_scope.cancel()


@pytest.fixture
def gate(store):
    """Nothing is created in the store before it is released."""
    made = Held(store, "create")
    yield made
    made.release()


async def test_files_in_one_piece_that_stay_open_keep_nobody_out(store):
    async with writing(store, layout=Layout.PLAIN) as uploads:
        drafts_open = []
        for number in range(HOSTS * PER_HOST):
            upload = await uploads.begin(b"/open%d" % number, replacing=None)
            await upload.write(0, content(MIB))
            drafts_open.append(upload)
        await until(lambda: uploads.status()["memory_bytes"] == 0)
        await save(uploads, b"/small", b"x")
        for upload in drafts_open:
            await upload.publish(final=True)
    assert load(store, b"/small") == b"x"
    assert load(store, b"/open0") == content(MIB)


def part_factory():
    """Makes parts of one byte each."""
    numbers = itertools.count()

    def new_path():
        number = next(numbers)
        return b"/part%d" % number, number

    return lambda on_end=None: PartUpload([b"x"], 1, new_path, on_end=on_end)


async def test_who_hears_of_an_end_may_send_more(store, gate):
    """As the budget does: what comes back from a file that was given up lets others' parts be cut and sent."""
    new_part, others = part_factory(), []

    def send_another(_):
        others.append(new_part())
        uploader.submit(others[-1])

    async with sending(store) as uploader:
        first = [new_part() for _ in range(HOSTS * PER_HOST)]
        given_up = [new_part(send_another) for _ in range(5)]
        for each in [*first, *given_up]:
            uploader.submit(each)
        assert uploader.waiting == len(given_up)
        for each in given_up:
            each.cancel()
            assert not each.ended.is_set()  # a caller that gives up may be amid changes that an end would disturb
        for each in given_up:  # though no host has a place, and nothing else is sent or ends
            await each.ended.wait()
            assert isinstance(each.error, DraftLost)
        assert (uploader.in_flight, uploader.waiting) == (len(first), len(given_up))
        gate.release()
        for each in first:
            await each.ended.wait()
        await until(lambda: len(others) == len(given_up) and all(each.acked for each in others))
        assert all(each.acked for each in first)
        assert (uploader.in_flight, uploader.waiting) == (0, 0)


async def test_what_waits_for_its_next_try_ends_when_it_is_given_up(store, monkeypatch):
    monkeypatch.setattr("stripefs.retry.FIRST_RETRY", 1e6)
    monkeypatch.setattr("stripefs.retry.LONGEST_RETRY", 1e6)

    def refused(path, **how):
        raise ServiceDown("away")

    store.create = refused
    async with sending(store, io_timeout=1e9) as uploader:
        given_up = part_factory()()
        uploader.submit(given_up)
        await until(lambda: uploader.retries == 1)
        given_up.cancel()
        await given_up.ended.wait()
        assert (uploader.in_flight, uploader.waiting) == (0, 0)


async def test_a_file_in_one_piece_that_is_not_begun_ends_when_it_is_given_up(store, tmp_path, gate):
    """Should it be begun after all nothing of it stays."""
    async with writing(store) as uploads:
        stream = StreamUpload(uploads._shared, lambda: (b"/hidden", 0), [], lambda size: None, lambda error: None)
        await until(lambda: gate.begun == 1)
        stream.cancel()
        await stream.ended.wait()
        gate.release()
        await until(lambda: gate.ended == 1)
        await until(lambda: not (tmp_path / "hidden").exists())


async def test_who_is_to_blame_is_avoided(store):
    """A host may say that another one, to which it passes on what it gets, has held it up."""
    create = store.create
    hosts = []

    def blaming(path, *, host, **how):
        hosts.append(host)
        if len(hosts) == 1:
            raise HostFailed("waits for another", host="h3" if host != "h3" else "h2", stalled=True)
        return create(path, host=host, **how)

    store.create = blaming
    async with writing(store) as uploads:
        await save(uploads, b"/file", content(MIB))
        [avoided] = [host["name"] for host in uploads.status()["hosts"] if host["avoided_seconds"] > 0]
        assert avoided in ("h2", "h3")
        assert avoided != hosts[0]
    assert load(store, b"/file") == content(MIB)
