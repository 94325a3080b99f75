"""chown of a file that is open for writing: what the store refuses is told, where it can be, by the call itself."""

from __future__ import annotations

import errno
import os

import pytest

from stripefs.errors import NotPermitted, PermissionDenied, Unsupported
from stripefs.store.base import Attributes
from stripefs.vfs import ROOT
from tests.unit.stripefs.vfs.world import FakeUploads, MemoryStore, created, failing, make_writable, quiet

NOBODY, DAEMON = 65534, 1


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    store.put(b"/f", b"one", owner="root", group="root")
    return store


REFUSED = failing("attributes", PermissionDenied("only a superuser gives files away"))


def owner_of(store: MemoryStore, path: bytes) -> tuple[str, str]:
    return store.entries[path].owner, store.entries[path].group


async def test_every_version_gets_the_owner_and_the_group(store: MemoryStore) -> None:
    tree = make_writable(store)
    handle, node = await created(tree, b"bytes")
    assert (await tree.setattr(node, uid=NOBODY)).uid == NOBODY
    assert (await tree.setattr(node, gid=DAEMON)).gid == DAEMON
    await tree.flush(handle)
    assert owner_of(store, b"/new") == ("nobody", "daemon")
    await tree.write(handle, 5, b", more")
    await tree.release(handle)
    assert owner_of(store, b"/new") == ("nobody", "daemon")
    assert store.contents()[b"/new"] == b"bytes, more"


async def test_what_can_be_known_is_told_at_once(store: MemoryStore) -> None:
    uploads = FakeUploads(store)
    tree = make_writable(store, uploads=uploads)
    handle, node = await created(tree, b"bytes")
    tried: list[Attributes] = []

    def deny(owners: Attributes) -> None:
        tried.append(owners)
        raise PermissionDenied("only a superuser gives files away")

    uploads.try_owners = deny
    with pytest.raises(NotPermitted, match="superuser") as caught:
        await tree.setattr(node, uid=NOBODY, gid=DAEMON)
    assert caught.value.errno == errno.EPERM
    assert tried == [Attributes(owner="nobody", group="daemon")]
    assert (await tree.getattr(node)).uid == os.getuid()
    await tree.setattr(node, mode=0o600)
    assert len(tried) == 1
    await tree.flush(handle)
    await tree.release(handle)
    assert owner_of(store, b"/new") == ("", "")
    assert store.contents()[b"/new"] == b"bytes"


@pytest.mark.parametrize("how", ["flush", "rename"])
async def test_what_shows_at_publication_is_told_by_close_once(store: MemoryStore, how: str) -> None:
    """The bytes are there all the same."""
    tree = make_writable(store)
    handle, node = await created(tree, b"bytes")
    await tree.setattr(node, uid=NOBODY)
    store.before = REFUSED
    with pytest.raises(NotPermitted):
        await (tree.flush(handle) if how == "flush" else tree.rename(ROOT, b"new", ROOT, b"f", replace=True))
    assert store.contents()[b"/new"] == b"bytes"
    assert store.contents()[b"/f"] == b"one"
    await tree.write(handle, 5, b", more")
    await tree.flush(handle)
    await tree.release(handle)
    assert store.contents()[b"/new"] == b"bytes, more"


async def test_a_file_that_is_not_open_or_has_nothing_new(store: MemoryStore) -> None:
    tree = make_writable(store)
    store.before = REFUSED
    node = (await tree.lookup(ROOT, b"f")).id
    for change in ({"uid": NOBODY}, {"mode": 0o600}, {"mtime_ns": 5}):
        with pytest.raises(NotPermitted):
            await tree.setattr(node, **change)
    store.before = quiet
    handle, made = await created(tree, b"bytes")
    await tree.flush(handle)
    published = (await tree.lookup(ROOT, b"new")).id
    store.before = REFUSED
    for which in (made, published):  # through the descriptor, and by path
        with pytest.raises(NotPermitted):
            await tree.setattr(which, uid=NOBODY)
    await tree.write(handle, 5, b", more")
    await tree.flush(handle)  # it was told, and is not tried again
    await tree.release(handle)
    assert owner_of(store, b"/new") == ("", "")


async def test_a_store_without_owners_does_without(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    """As it does without the mode of a new file."""
    tree = make_writable(store)
    handle, node = await created(tree, b"bytes")
    store.before = failing("attributes", Unsupported("no owners here"))
    await tree.setattr(node, uid=NOBODY)
    await tree.flush(handle)
    await tree.release(handle)
    assert store.contents()[b"/new"] == b"bytes"
    assert "keeps the owner" in caplog.text
