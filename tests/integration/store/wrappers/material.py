"""Material of the tests of wrappers."""

from __future__ import annotations

from stripefs.errors import StoreError
from stripefs.store.base import Block, Store
from stripefs.testing import ThrottledStore
from tests.support.stores import content

MIB = 1 << 20
KIB = 1 << 10


def spread(local: Store, **more: object) -> ThrottledStore:
    values: dict[str, object] = {"hosts": 4, "rate": 1e9, "block_size": 64 * KIB, "host_timeout": 0.2}
    return ThrottledStore(local, **(values | more))  # type: ignore[arg-type]


def make(store: Store, path: bytes, data: bytes, host: str = "", block_size: int = 0, replication: int = 0) -> None:
    sink = store.create(path, host=host, block_size=block_size, replication=replication)
    sink.write(data)
    sink.close()


def blocks(store: Store, path: bytes) -> list[Block]:
    handle = store.open(path)
    handle.close()
    return list(handle.locate(0, handle.status.length))


def outcomes(store: Store, order: list[int]) -> dict[int, str]:
    handle = store.open(b"/file")
    found = {}
    for start in order:
        try:
            data = handle.read(start, 100)
            assert bytes(data) == content(MIB)[start : start + 100]
            found[start] = "right"
        except (StoreError, RuntimeError) as error:
            found[start] = type(error).__name__
    return found
