"""Typed documents of the daemon's protocol: the holders of a mount, and what clients ask for and are told.

A mount is held by processes (until it stands, or as long as they use it), by itself where somebody is to unmount it, or
by leases. Operations for leases:

    hold            store, image, lease, above   the image, and snapshots above it, are mounted on this host until the
                                                 lease is released; where
    release         lease, at_once               the lease ends; mounts that nobody has any more go, after a while
    leases          client                       the leases of a client
    find            stores, source, timeout      which image was built from an OCI manifest, and which store has it
    usage           image                        bytes and inodes of each part of an image that is on this host's disk
    discard         image, parts                 the client needs the image no more: these parts go when they are unused
    capabilities                                 the version of the protocol, and what this daemon can do beyond it

The daemon decodes requests and checks them (`imagefs.daemon.requests`). Keys that are not known are ignored, those with
a default may be missing. So a newer client is understood as far as the daemon goes, and asks for `capabilities` where
that is not enough.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from stripefs.errors import ConfigError
from stripefs.records import NamedTuple
from stripefs.settings import StoreSettings

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from typing import Any, Literal

__all__ = [
    "CAPABILITIES",
    "SOURCE",
    "VERSION",
    "AttachRequest",
    "Attached",
    "AttachedDevice",
    "FoundImage",
    "HeldImage",
    "HintDocument",
    "HoldRequest",
    "Holder",
    "Lease",
    "MountHolder",
    "MountedTree",
    "ProcessHolder",
    "Recording",
    "SharedSnapshot",
    "SnapshotKey",
    "SnapshotUse",
    "Unusable",
    "holder_json",
    "source_digest",
]

VERSION = 1
CAPABILITIES = ("leases", "find", "above", "usage", "discard")
SOURCE = "source:"
"""Before the digest of an OCI manifest, in place of a tag: the image that was built from that."""

_SOURCE_DIGEST = r"sha256:[0-9a-f]{64}"


class ProcessHolder(NamedTuple):
    """A process, and when it was started in ticks since the machine was."""

    process: int
    began: int


class MountHolder(NamedTuple):
    """The mount at `path` itself: it stays until somebody unmounts it."""

    path: str


class Lease(NamedTuple):
    """A holder of a mount that outlives processes. `name` is unique within `client`; `label` is for people."""

    name: str
    client: str
    label: str = ""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Lease:
        """Raises ConfigError for one without a name or a client."""
        lease = cls(str(data.get("name") or ""), str(data.get("client") or ""), str(data.get("label") or ""))
        if not lease.name or not lease.client:
            raise ConfigError("a lease has a name and a client")
        return lease

    def is_of(self, data: Mapping[str, Any]) -> bool:
        """Tells whether `data` describes this lease, whatever its label is."""
        return (data.get("name"), data.get("client")) == (self.name, self.client)


Holder = ProcessHolder | MountHolder | Lease


def holder_json(holder: Holder) -> dict[str, Any]:
    """As `status` shows it."""
    kinds: dict[type, str] = {ProcessHolder: "process", MountHolder: "mount", Lease: "lease"}
    return {"kind": kinds[type(holder)], **holder._asdict()}


def source_digest(text: str) -> str:
    """The digest of an OCI manifest, `sha256:HEX`. Raises ConfigError for anything else."""
    if not re.fullmatch(_SOURCE_DIGEST, text):
        raise ConfigError(f"{text!r} is no digest of a manifest", hint="sha256: and 64 hexadecimal digits")
    return text


class SnapshotKey(NamedTuple):
    """A dependency snapshot of a container. key: its name."""

    store: StoreSettings
    key: str

    def to_json(self) -> dict[str, Any]:
        return {"store": self.store._asdict(), "key": self.key}


class Unusable(NamedTuple):
    """A snapshot that was asked for and is not mounted. why: for people."""

    key: str
    kind: Literal["missing", "damaged", "unavailable"]
    why: str


class Recording(NamedTuple):
    """Settings of the recording of a start. seconds 0: as long as the daemon's settings say."""

    workload: str = "default"
    seconds: float = 0.0
    ready_file: str = ""
    off: bool = False


class SnapshotUse(NamedTuple):
    """A dependency snapshot that is to be used: its name, and by which processes, each with when it began.

    kept: it stays mounted when these have ended.
    """

    name: str
    users: tuple[tuple[int, int], ...] = ()
    kept: bool = False


class HintDocument(NamedTuple):
    """A hint for later starts, which the store of a snapshot gets."""

    name: str
    document: str


class AttachRequest(NamedTuple):
    """An image that is to be served for a mount or a container.

    id: chosen by the client, so that a request that is repeated is one. image: a tag or digest in the store. owner,
    owner_began: the process with whose end the use ends unless it is mounted by then, 0 for none, and when that was
    started. mountpoint: where it will be mounted, "" for where only the owner sees it, in this mount namespace.
    timeout: seconds for the store, 0 for the daemon's own. shares: the client copies mounts of others, and lets them
    copy its own. snapshot: which dependency snapshot it is, None for an image that is mounted for itself; mounted:
    whether the client sees one of ours there; hint: one that its store gets. lease: the holder of the mount, if any.
    events: the start to which events belong, as `imagefs.daemon.start_events` reads it.
    """

    id: str
    store: StoreSettings
    image: str
    owner: int = 0
    owner_began: int = 0
    mountpoint: str = ""
    namespace: int = 0
    timeout: float = 0.0
    recording: Recording = Recording()
    shares: bool = False
    snapshot: SnapshotUse | None = None
    mounted: bool = False
    hint: HintDocument | None = None
    lease: Lease | None = None
    events: Mapping[str, Any] = {}

    def to_json(self) -> dict[str, Any]:
        """Values that are not set are left out, as daemons expect it."""
        found = {**self._asdict(), "store": self.store._asdict(), "recording": self.recording._asdict()}
        for name in ("snapshot", "lease", "hint"):
            one = found.pop(name)
            found |= {name: one._asdict()} if one is not None else {}
        events = found.pop("events")
        return found | ({"events": dict(events)} if events else {})


class HoldRequest(NamedTuple):
    """image: a tag or digest in the store, or `SOURCE` and the digest of the OCI manifest that it was built from.
    namespace: the mount namespace of the client. timeout: seconds for the store, 0 for the daemon's own. workload:
    under which name the start is recorded. above: snapshots to be stacked above the image, the uppermost first. events:
    the start to which events belong, as `imagefs.daemon.start_events` reads it.

    An image that is named by its own digest needs no store where its documents are in the cache.
    """

    store: StoreSettings
    image: str
    lease: Lease
    namespace: int
    timeout: float = 0.0
    workload: str = "default"
    above: tuple[SnapshotKey, ...] = ()
    events: Mapping[str, Any] = {}

    def to_json(self) -> dict[str, Any]:
        above = [one.to_json() for one in self.above]
        return {**self._asdict(), "store": self.store._asdict(), "lease": self.lease._asdict(), "above": above}


class HeldImage(NamedTuple):
    """The mounts that a lease holds.

    lowerdir: the tree of the image, read-only. image: the digest of its manifest. config: the OCI image config.
    above: the trees of the snapshots, the uppermost first. unusable: snapshots that were asked for and are not there.
    """

    lease: Lease
    lowerdir: str
    image: str
    config: Mapping[str, Any] = {}
    above: tuple[str, ...] = ()
    unusable: tuple[Unusable, ...] = ()

    @property
    def lowerdirs(self) -> tuple[str, ...]:
        """All trees as overlayfs takes them: the uppermost first, the image last."""
        return (*self.above, self.lowerdir)

    def to_json(self) -> dict[str, Any]:
        unusable = [one._asdict() for one in self.unusable]
        return {**self._asdict(), "lease": self.lease._asdict(), "above": list(self.above), "unusable": unusable}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HeldImage:
        return cls(
            Lease.from_json(data["lease"]),
            str(data["lowerdir"]),
            str(data["image"]),
            dict(data.get("config") or {}),
            tuple(map(str, data.get("above") or ())),
            tuple(Unusable(one["key"], one["kind"], one["why"]) for one in data.get("unusable") or ()),
        )


class AttachedDevice(NamedTuple):
    """A device of an attached image: its tag, and the file that holds it."""

    tag: str
    path: str
    local: bool


class MountedTree(NamedTuple):
    """A mount of an image: the path of a mountpoint or a descriptor, and MAJOR:MINOR of the file system."""

    path: str
    device: str


class Attached(NamedTuple):
    """An image that the daemon serves.

    metadata: the EROFS image on local disk. config: the OCI image config. offline: the store could not be asked. upper:
    a folder of the cache for what is written to it, to be made by whoever needs it. tree: where it is mounted already,
    if anywhere. base: the image that it was optimised from, which has the same tree; itself where it was not.
    """

    id: str
    image: str
    metadata: str
    devices: tuple[AttachedDevice, ...]
    tree: MountedTree | None
    config: dict[str, Any]
    offline: bool
    base: str
    upper: str

    def to_json(self) -> dict[str, Any]:
        tree = None if self.tree is None else self.tree._asdict()
        return {**self._asdict(), "devices": [one._asdict() for one in self.devices], "tree": tree}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Attached:
        tree, image = data.get("tree"), data["image"]
        return cls(
            data["id"],
            image,
            data["metadata"],
            tuple(AttachedDevice(**one) for one in data["devices"]),
            MountedTree(tree["path"], tree["device"]) if tree else None,
            data["config"],
            data["offline"],
            data.get("base") or image,
            data["upper"],
        )


class SharedSnapshot(NamedTuple):
    """A snapshot that is mounted already."""

    id: str
    image: str

    def to_json(self) -> dict[str, Any]:
        return {"shared": True, **self._asdict()}


class FoundImage(NamedTuple):
    """An image that a store has: the digest of its manifest."""

    image: str
    store: StoreSettings
