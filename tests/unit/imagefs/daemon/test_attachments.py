"""The daemon's host of images by itself, no kernel around it: what it holds, what it lets go, whom it believes."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
import trio

from imagefs.daemon import processes
from imagefs.daemon.attachments import Attachments
from imagefs.daemon.client import new_identifier
from imagefs.daemon.protocol import Attached, AttachRequest, Recording
from imagefs.daemon.requests import AnnounceRequest, DetachRequest, MountedRequest, ReadyRequest
from imagefs.repository.images import Images
from stripefs.errors import MountError, StaleVersion, StripefsError
from stripefs.settings import StoreSettings
from stripefs.store.url import prepare
from tests.support.images.devices import eventually
from tests.support.images.faults import make_image
from tests.unit.imagefs.daemon.fake_host import OpenJournal, running_host


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_image(tmp_path_factory.mktemp("image"))[1]


UNRECORDED = Recording(off=True)


def request(store: Path | str, recording: Recording = UNRECORDED, **values: Any) -> AttachRequest:
    return AttachRequest(new_identifier(), StoreSettings(url=str(store)), "t", recording=recording, **values)


@pytest.mark.slow
async def test_80_uses_leave_nothing(
    tmp_path: Path, store: Path, open_journal: OpenJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    # trio forgets deadlines that do not count any more when there are a thousand of them.
    monkeypatch.setattr("trio._core._run.DEADLINE_HEAP_MIN_PRUNE_THRESHOLD", 10)
    monkeypatch.setattr("stripefs.executor.IDLE", 0.01)  # threads of stores that are not used any more end at once
    prepare("http")  # as a thread does meanwhile, which may take longer than the first uses
    async with running_host(tmp_path, open_journal()) as host:
        tree = host.device_tree

        async def use(number: int) -> None:
            # Each store is another one, though it is the same folder.
            answer = await host.attach(request(f"{store}{'/' * (number % 7)}", mountpoint=f"/mnt/{number % 5}"))
            index = answer.devices[0].path.rpartition("/")[2]
            if not answer.devices[0].local:
                handle = await tree.open((await tree.lookup(1, index.encode())).id)
                await tree.read(handle, 0, 100)
                await tree.release(handle)
            await host.ready(ReadyRequest(answer.id))
            await host.detach(DetachRequest(answer.id))
            await host.detach(DetachRequest(answer.id))

        async def measured() -> tuple[Counter[str], int, int, int]:
            await trio.sleep(0.05)
            gc.collect()
            descriptors = len(os.listdir("/proc/self/fd"))
            kinds = Counter(type(one).__name__ for one in gc.get_objects())
            return kinds, descriptors, len(host._devices._sources), len(list(open_journal().load()))

        for number in range(20):
            await use(number)
        before, descriptors, sources, _ = await measured()
        for number in range(80):
            await use(number)
        after, descriptors_now, sources_now, records = await measured()
        grown = {kind: count - before[kind] for kind, count in after.items() if count - before[kind] > 50}
        assert grown == {}
        assert descriptors_now <= descriptors + 2
        assert sources == sources_now == 0
        assert records < 100 * 12  # and less, whenever the journal is worth replacing
        assert host.state.known == {}
        assert host.snapshot()["blocks"]["devices"] == []


async def test_an_announced_image_is_asked_for_once(
    tmp_path: Path, store: Path, open_journal: OpenJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = create_autospec(Images.resolve, side_effect=Images.resolve)
    monkeypatch.setattr(Images, "resolve", resolve)
    async with running_host(tmp_path, open_journal()) as host:
        first = await host.attach(request(store))
        assert [one.args[1] for one in resolve.call_args_list] == ["t"]
        announced = request(store)
        await host.early_answers.announce(AnnounceRequest(announced.id, f"{store}#t"))
        await eventually(lambda: resolve.call_count == 2)
        assert (await host.attach(announced)).image == first.image
        assert resolve.call_count == 2
        await host.attach(request(store))
        assert resolve.call_count == 3, "one that was not announced"


async def test_one_id_is_one_use_whoever_asks(tmp_path: Path, store: Path, open_journal: OpenJournal) -> None:
    asked = request(store)
    answers: list[Attached] = []

    async def ask() -> None:
        answers.append(await host.attach(asked))

    async with running_host(tmp_path, open_journal()) as host:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
        answers.append(await host.attach(asked))
        assert len(host.state.attachments) == 1
        assert len({str(answer) for answer in answers}) == 1
        await host.detach(DetachRequest(asked.id))
        with pytest.raises(MountError, match="does not know this mount"):
            await host.mounted(MountedRequest(asked.id, "erofs"))


async def test_one_that_gives_up_takes_nobody_along(tmp_path: Path, store: Path, open_journal: OpenJournal) -> None:
    """Two ask for the same documents; the first has less time than the store takes."""
    slow = f"delayed+file://{store}?delay=300ms&on=read"
    async with running_host(tmp_path, open_journal()) as host:
        failed: list[StripefsError] = []

        async def ask(timeout: float) -> None:
            try:
                await host.attach(request(slow, timeout=timeout))
            except StripefsError as error:
                failed.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, 0.75)
            await trio.sleep(0.01)
            nursery.start_soon(ask, 60)
        assert [str(error).split(":")[-1].strip()[:9] for error in failed] == ["no answer"]
        assert len(host.state.attachments) == 1


@pytest.mark.slow
async def test_a_use_ends_with_its_process(tmp_path: Path, store: Path, open_journal: OpenJournal) -> None:
    """Also when that happens while there is no worker, and its number was given to somebody else."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        owned = {"owner": process.pid, "owner_began": processes.began(process.pid)}
        async with running_host(tmp_path, open_journal()) as host:
            first = await host.attach(request(store, **owned))
            second = await host.attach(request(store, **owned, mountpoint="/mnt/x"))
            third = await host.attach(request(store, **owned, mountpoint="/mnt/y", namespace=processes.namespace()))
            await host.mounted(MountedRequest(third.id, "erofs"))
            with pytest.raises(MountError, match="is not to be seen"):
                await host.attach(request(store, owner=process.pid, owner_began=1))
            process.send_signal(signal.SIGSTOP)
            await trio.sleep(1)
            assert {first.id, second.id} <= set(host.state.attachments)
        process.kill()
        process.wait()
        async with running_host(tmp_path, open_journal()) as host:
            await eventually(lambda: host.state.attachments == {}, "all to be let go")


async def test_a_number_that_was_given_to_somebody_else(tmp_path: Path, store: Path, open_journal: OpenJournal) -> None:
    began = processes.began(os.getpid())
    async with running_host(tmp_path, open_journal()) as host:
        answer = await host.attach(request(store, owner=os.getpid(), owner_began=began))
        host._journal.record({"change": {"id": answer.id, "owner_began": began - 1}})
    async with running_host(tmp_path, open_journal()) as host:
        await eventually(lambda: host.state.attachments == {}, "it to be let go")


async def test_what_was_opened_stays_right_over_workers(tmp_path: Path, store: Path, open_journal: OpenJournal) -> None:
    """Calls that a worker answered before it died, unheard, are asked again."""
    async with running_host(tmp_path, open_journal()) as host:
        tree = host.device_tree
        answer = await host.attach(request(store))
        index = answer.devices[0].path.rpartition("/")[2]
        node = (await tree.lookup(1, index.encode())).id
        unheard = await tree.open(node)
        expected = bytes(await tree.read(unheard, 0, 1000))
        await host.detach(DetachRequest(answer.id))
    async with running_host(tmp_path, open_journal()) as host:
        tree = host.device_tree
        handle = await tree.open(node)
        assert handle != unheard
        await tree.release(handle)
    async with running_host(tmp_path, open_journal()) as host:
        tree = host.device_tree
        await tree.release(handle)
        assert host.state.holders(index) == 1
        assert bytes(await tree.read(unheard, 0, 1000)) == expected
        assert host.state.pages == {index}
        tree.forget([(node, 1)])
        assert (host.state.known, host.state.pages, host.state.handles) == ({}, set(), {})
        with pytest.raises(StaleVersion):
            await tree.read(unheard, 0, 1000)
        with pytest.raises(StaleVersion):
            await tree.open(node)


async def test_a_start_with_pages_in_memory_is_not_recorded(
    tmp_path: Path, store: Path, open_journal: OpenJournal
) -> None:
    """The kernel keeps what it read of a device after the last unmount; it would not ask for it again."""
    recorded = request(store, Recording())

    async def use(host: Attachments, read: bool) -> str:
        tree = host.device_tree
        answer = await host.attach(recorded._replace(id=new_identifier()))
        index = answer.devices[0].path.rpartition("/")[2]
        node = (await tree.lookup(1, index.encode())).id
        if read:
            handle = await tree.open(node)
            await tree.read(handle, 0, 1000)
            await tree.release(handle)
        why = host.state.attachments[answer.id].unrecorded
        await host.detach(DetachRequest(answer.id))
        if not read:
            tree.forget([(node, 1)])
        return why

    async with running_host(tmp_path, open_journal()) as host:
        assert await use(host, read=True) == ""
        assert "used before" in await use(host, read=False)
    async with running_host(tmp_path, open_journal()) as host:
        assert "used before" in await use(host, read=False)
        node = int(next(iter(host.state.lookups))[:16], 16) & (1 << 63) - 1 | 1 << 32
        host.device_tree.forget([(node, host.state.lookups[next(iter(host.state.lookups))])])
        assert await use(host, read=False) == ""
