"""Files of the reader's tests: a local file of 24 MiB and an empty one."""

import random

import pytest

from stripefs.store.local import LocalStore
from stripefs.testing.counting import CountingStore

MIB = 1 << 20


@pytest.fixture(scope="module")
def data():
    return random.Random(1).randbytes(24 * MIB + 12345)


@pytest.fixture
def content(tmp_path, data):
    (tmp_path / "big").write_bytes(data)
    (tmp_path / "empty").touch()
    return data


@pytest.fixture
def local(tmp_path, content):
    """A store without reads that do not wait, so that the planner has its part."""
    store = CountingStore(LocalStore(str(tmp_path)))
    yield store
    store.close()
