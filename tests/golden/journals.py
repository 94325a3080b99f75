"""The golden journals: the memory that a worker leaves to the next one, which may be of a later version.

`inodes.journal` is that of a mount, `daemon.journal` that of the imagefs daemon. Both were written by the steps below,
with the version before 0.1.0, whose modules and functions had other names. A worker of this version must read them,
since a live upgrade hands them to it; it writes the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from imagefs.daemon.state import Attachment, DeviceUse, StateJournal
from stripefs.fuse.state_memory import CounterPage, MemoryJournal, make_memory
from stripefs.store.base import Identity, Kind, Status
from stripefs.vfs.inodes import ROOT, InodeTable, unpublished_identity

__all__ = ["DAEMON_RECORDS", "DOCUMENTS", "FOLDER", "change_inodes"]

FOLDER = Path(__file__).parent

_STATUS = Status(
    b"data \xff", Kind.FILE, 1 << 40, -1, 1_700_000_000_123_456_789, 0o4640, "alice", "\udcff", "17:4711",
    128 << 20, 3, 2,
)  # fmt: skip


def change_inodes(table: InodeTable) -> None:
    """At least one record of each kind."""
    folder = table.add_lookup(ROOT, b"folder", Kind.DIRECTORY, None).id
    file = table.add_lookup(folder, b"data \xff", Kind.FILE, Identity(1 << 40, -1, "17:4711")).id
    table.commit()
    table.open_file(file, _STATUS)
    handle = table.open_directory(folder)
    for name in (b"data \xff", "ünï".encode()):
        table.add_cookie(handle, name)
    table.commit()
    for name, kind in ((b"link", Kind.SYMLINK), (b"pipe", Kind.OTHER), (b"link", Kind.SYMLINK)):
        table.add_lookup(ROOT, name, kind, Identity(7, 8, ""))
    table.forget(table.id_of(ROOT, b"pipe", Kind.OTHER, Identity(7, 8, "")), 1)
    table.commit()
    table.rekey(file, ROOT, b"moved", Identity(1 << 40, 5, "17:4712"))
    table.commit()
    gone = table.open_file(file, _STATUS)
    table.release(gone)
    written = table.add_lookup(ROOT, b"written", Kind.FILE, unpublished_identity("\0being written:0123456789abcdef"))
    table.open_file(written.id, Status(b"written", Kind.FILE))
    table.commit()
    table.begin_intent(b"mkdir\0/made\0")
    answered = table.begin_intent(b"unlink\0/answered\0file 12")
    table.commit()
    table.end_intent(answered)
    table.begin_intent(b"rename\0/a\0/b\0file 12")
    table.begin_intent(b"wish\0/written\0\0being written:fedcba9876543210")
    table.commit()


def _attachment(name: str, **facts: Any) -> dict[str, Any]:
    devices = (DeviceUse("cold", 1 << 30, "a" * 64), DeviceUse("hot", 4096, "b" * 64))
    made = Attachment(
        id=name,
        name="hdfs://namenode:8020/images#train",
        store={"url": "hdfs://namenode:8020/images", "hdfs_user": "alice"},
        image="c" * 64,
        base="d" * 64,
        metadata="/var/cache/bootseer/metadata",
        devices=devices,
        since=1_700_000_000.125,
        begun=12.5,
        workload="train-7b",
        record_seconds=600.0,
        **facts,
    )
    return {"attach": made.to_json()}


DAEMON_RECORDS: list[dict[str, Any]] = [
    _attachment("container", owner=4711, owner_began=99, namespace=4026531840, ready_file="/ready"),
    _attachment("mount", mountpoint="/mnt/image", kept=True, plane="erofs", unrecorded="--no-record", ready=True),
    _attachment("snapshot", snapshot="deps-0123", users=[[8, 80], [9, 90]], shown=["/run/bootseer", "erofs-1"]),
    _attachment("pooled", pooled=True, lingers=False, leases=[{"name": "n", "client": "c", "label": "pod"}]),
    _attachment("gone", events={"job": "j", "node": "n", "attempt": 1}),
    {"change": {"id": "container", "owner": 0, "mountpoint": "/mnt/container", "ready": True}},
    {"change": {"id": "snapshot", "users": [[9, 90]], "leaving": True}},
    {"lookup": "a" * 64},
    {"lookup": "a" * 64},
    {"lookup": "b" * 64},
    {"forget": ["a" * 64, 1]},
    {"open": [1, "a" * 64]},
    {"open": [2, "b" * 64]},
    {"release": 1},
    {"pages": "b" * 64},
    {"known": {"b" * 64: {"store": {"url": "/elsewhere"}, "size": 4096}}},
    {"detach": "gone"},
    {"kernel": {"lookups": {"a" * 64: 5}, "handles": [[7, "a" * 64]], "next": 9, "pages": ["a" * 64]}},
]


def _memory(fill: Callable[[MemoryJournal], None]) -> bytes:
    """The bytes of the slot of a journal that `fill` was called with."""
    descriptors = make_memory()
    try:
        fill(MemoryJournal(CounterPage(descriptors[0]), descriptors[1:]))
        return os.pread(descriptors[1], 1 << 20, 0)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _record(journal: MemoryJournal) -> None:
    kept = StateJournal(journal)
    for record in DAEMON_RECORDS:
        kept.record(record)


DOCUMENTS: dict[str, Callable[[], bytes]] = {
    "inodes.journal": lambda: _memory(lambda journal: change_inodes(InodeTable(journal))),
    "daemon.journal": lambda: _memory(_record),
}
