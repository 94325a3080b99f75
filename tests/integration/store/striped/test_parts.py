"""Reading from parts: any range, hosts, tables, how many stay open."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stripefs.errors import HostFailed, ServiceDown
from stripefs.store import striped_handle as handles
from stripefs.store.base import Buffer, Handle, Identity, Watch
from stripefs.store.local import LocalStore
from stripefs.store.striped import AT_ONCE, StripedStore
from stripefs.store.wrapper import WrappedHandle, WrappedStore
from stripefs.testing import CountingStore, ThrottledStore
from tests.integration.store.striped.material import DATA, UNIT, Failing
from tests.support.stores import content
from tests.support.striped_files import write_striped
from tests.support.waiting import eventually


def test_units_of_several_checks(store: StripedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads within a unit are widened to whole checks and cut again."""
    big = content(5 * 3_145_728 // 2)
    write_striped(store, b"/f", big, unit=3_145_728)
    handle = store.open(b"/f")
    for offset, length in [(0, 1), (1 << 20, 1 << 20), ((1 << 20) - 1, 2), (3_145_727, 2), (len(big) - 5, 5)]:
        assert bytes(handle.read(offset, length)) == big[offset : offset + length]
    handle.close()


def test_blocks_wait_for_a_service_that_is_away(inner: LocalStore) -> None:
    failing = Failing(inner)
    store = StripedStore(failing)
    manifest = write_striped(inner, b"/f", DATA)
    handle = store.open(b"/f")
    failing.down = {manifest.parts[3].path()}
    with pytest.raises(ServiceDown):
        handle.locate(0, len(DATA))
    with pytest.raises(ServiceDown):
        handle.read(3 * UNIT, 1)
    assert len(handle.locate(0, 3 * UNIT)) == 3
    handle.close()
    store.close()


def test_few_parts_stay_open_and_all_are_closed(inner: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "OPEN_PARTS", 3)
    counting = CountingStore(inner)
    store = StripedStore(counting)
    write_striped(inner, b"/f", DATA, [(len(DATA), 11)])
    handle = store.open(b"/f")
    for _ in range(3):
        with ThreadPoolExecutor(8) as threads:
            reads = threads.map(lambda at: bytes(handle.read(at, min(UNIT, len(DATA) - at))), range(0, len(DATA), UNIT))
            assert b"".join(reads) == DATA
        handle.locate(0, len(DATA))
    assert 0 < counting.counts.open_now <= 3
    handle.close()
    assert counting.counts.open_now == 0
    store.close()


def test_hosts_are_those_of_the_parts(inner: LocalStore) -> None:
    throttled = ThrottledStore(inner, rate=1e12, block_size=4 * UNIT, placement="even", hosts=5, replication=2)
    store = StripedStore(throttled)
    manifest = write_striped(inner, b"/f", DATA, [(len(DATA), 2)])
    handle = store.open(b"/f")
    blocks = handle.locate(0, len(DATA))
    assert [(block.offset, block.length) for block in blocks] == [
        (at, min(UNIT, len(DATA) - at)) for at in range(0, len(DATA), UNIT)
    ]
    for number, block in enumerate(blocks):
        assert block.hosts == throttled.replicas(manifest.parts[number % 2].path(), number // 2 // 4)
        for host in block.hosts:
            assert bytes(handle.read(block.offset, 10, host=host)) == DATA[block.offset : block.offset + 10]
    assert handle.locate(UNIT + 5, 1) == [blocks[1]]
    assert handle.locate(len(DATA) - 1, 100) == [blocks[-1]]
    elsewhere = next(host.name for host in store.hosts() if host.name not in blocks[0].hosts)
    with pytest.raises(HostFailed):
        handle.read(0, 10, host=elsewhere)
    handle.close()
    store.close()


def test_what_a_reader_goes_on_to_is_told_to_its_part(inner: LocalStore) -> None:
    """Of bytes ahead a part gets its share of a row, and never more than its units: its table is another read."""
    told: list[tuple[int, int, int]] = []

    class Telling(WrappedHandle):
        def read_on(
            self, offset: int, length: int, ahead: int, *, host: str = "", watch: Watch | None = None
        ) -> Buffer:
            told.append((offset, length, ahead))
            return self.inner.read(offset, length)

    class Told(WrappedStore):
        NAME = "told"

        def handle(self, path: bytes, inner: Handle) -> Handle:
            return Telling(inner) if b".stripefs" in path else inner

    store = StripedStore(Told(inner))
    data = content(10 * UNIT)
    write_striped(inner, b"/f", data, [(8 * UNIT, 4), (2 * UNIT, 2)])
    handle = store.open(b"/f")
    for ahead in (0, 2 * UNIT, 100 * UNIT):
        assert handle.read_on(UNIT, UNIT, ahead) == data[UNIT : 2 * UNIT]
    assert told == [(0, UNIT, 0), (0, UNIT, UNIT // 2), (0, UNIT, UNIT)]
    handle.close()
    store.close()


def test_parts_on_a_host_that_hangs_hold_up_no_listing(inner: LocalStore, tmp_path: Path) -> None:
    begun: list[bytes] = []
    go_on = threading.Event()

    class Frozen(LocalStore):
        def open(self, path: bytes, expect: Identity | None = None) -> Handle:
            if b".stripefs" in path:
                begun.append(path)
                assert go_on.wait(60)
            return super().open(path, expect)

    view = StripedStore(Frozen(os.fsencode(tmp_path)))
    for number, name in enumerate((b"/f", b"/g")):
        write_striped(inner, name, DATA, version=f"{number:016x}")
    handle = view.open(b"/f")
    threads = []
    try:
        while len(begun) < AT_ONCE:  # the threads that there are for parts
            before = len(begun)
            threads.append(threading.Thread(target=handle.locate, args=(0, len(DATA))))
            threads[-1].start()
            eventually(lambda: len(begun) > before or len(begun) >= AT_ONCE, "the next opens")  # noqa: B023
        assert [status.length for page in view.scandir(b"/") for status in page] == [len(DATA)] * 2
    finally:
        go_on.set()
        for thread in threads:
            thread.join()
        handle.close()
        view.close()
