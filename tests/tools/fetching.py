"""A process that fetches blocks, for tests: running, and for reads of any length."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from stripefs.store.hdfs.data_transfer import FetchRequest
from stripefs.store.hdfs.fetch_process import FetchProcess
from stripefs.store.hdfs.transfer_wire import BlockName, BlockRange
from tests.support.waiting import eventually

__all__ = ["fetch_process", "request_for"]


def request_for(address: str, offset: int, length: int, *, timeout: float = 30.0) -> FetchRequest:
    """Asks for these bytes of the only block of a `fake_transfer`."""
    return FetchRequest(
        BlockRange(BlockName("pool", 5, 1001, 1 << 40), offset, length), address, "dn:1", timeout, timeout
    )


@contextmanager
def fetch_process() -> Iterator[FetchProcess]:
    with closing(FetchProcess(least=1)) as found:
        found.start()
        eventually(lambda: found._control, "the process that fetches")
        yield found
