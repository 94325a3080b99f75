"""Material of the tests of wrappers."""

from __future__ import annotations

from stripefs.store.base import Store
from stripefs.testing import ThrottledStore

MIB = 1 << 20
KIB = 1 << 10


def spread(local: Store, **more: object) -> ThrottledStore:
    values: dict[str, object] = {"hosts": 4, "rate": 1e9, "block_size": 64 * KIB, "host_timeout": 0.2}
    return ThrottledStore(local, **(values | more))  # type: ignore[arg-type]


def make(store: Store, path: bytes, data: bytes, host: str = "", block_size: int = 0, replication: int = 0) -> None:
    sink = store.create(path, host=host, block_size=block_size, replication=replication)
    sink.write(data)
    sink.close()
