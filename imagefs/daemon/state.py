"""The state of the daemon that outlives a worker: who uses which image, what the kernel holds; and the journal of it.

Each change is a record, which the worker appends to the journal that its supervisor keeps before it acts on it;
`DaemonState.apply` of all records makes the state again. Records are JSON objects with one key, the kind of change.

A worker may read what one of another version wrote, when the program was exchanged under live mounts. Keys that it does
not know it keeps and ignores. Records of a kind that it does not know it leaves out: the kernel may then hold handles
that it never heard of, which answer ESTALE, and it keeps clear of their numbers. Ending all mounts would be worse, and
no bytes can be wrong, for a device is named by what it holds, and a local file that a mount uses is seen to be open.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from imagefs.daemon.protocol import AttachRequest, Holder, Lease, MountHolder, ProcessHolder
from imagefs.format.documents import Manifest
from stripefs.fuse.state_memory import MemoryJournal
from stripefs.settings import redact

__all__ = ["Attachment", "DaemonState", "DeviceUse", "StateJournal", "UnknownRecord", "attachment_of"]

_log = logging.getLogger(__name__)
_UNHEARD = 1 << 32
"""Handles that may have been given out in records that were left out: more than any worker opens."""


class UnknownRecord(ValueError):
    """A record of a kind that this version does not know."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"a record of kind {kind!r}")
        self.kind = kind


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A device of an image: its tag, its length in bytes, and the digest of its block index."""

    tag: str
    size: int
    index: str
    extra: dict[str, Any] = field(default_factory=dict, compare=False)
    """Fields that another version set."""

    def to_json(self) -> dict[str, Any]:
        return {**self.extra, "tag": self.tag, "size": self.size, "index": self.index}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DeviceUse:
        known, extra = _split(cls, data)
        return cls(**known, extra=extra)


@dataclass(slots=True)
class Attachment:
    """One use of an image, by a mount or a container.

    id: chosen by the client, so that an attach that is asked twice is one. name: STORE#TAG as the user wrote it,
    without secrets. store: the fields of `StoreSettings`. image: digest of the manifest; base: of the one it was
    optimised from, else the same. since: in seconds since 1970; begun: the same moment on the clock that never jumps.
    owner: the process whose end ends the use, 0 once it is mounted; owner_began: when that was started. mountpoint:
    where it is or will be mounted, "" for a container's; namespace: the mount namespace in which that is. plane: ""
    until it is mounted. workload: under which name its start is recorded. unrecorded: why it is not ("" while it is,
    or was to the end). ready: when the job said so, or was taken to be.

    snapshot: the name of the dependency snapshot that it is, "" for an image that is mounted for itself. Such a mount
    goes when its last user has ended: users are processes and when they were started, as of owner; kept: it stays
    until it is unmounted; leaving: it is being unmounted. pooled: it is mounted for leases (`imagefs.daemon.protocol`),
    and goes after the last of them, or, where it lingers, some time later. shown: where its EROFS mount can be copied
    from (`MountedTree`), empty where it cannot. events: the start to which its events belong, as `Identity` of
    `stripefs.startup_events` has it; empty where nobody wants them.
    """

    id: str
    name: str
    store: dict[str, Any]
    image: str
    base: str
    metadata: str
    devices: tuple[DeviceUse, ...]
    since: float
    begun: float = 0.0
    workload: str = "default"
    owner: int = 0
    owner_began: int = 0
    mountpoint: str = ""
    namespace: int = 0
    plane: str = ""
    ready_file: str = ""
    record_seconds: float = 0.0
    unrecorded: str = ""
    ready: bool = False
    snapshot: str = ""
    users: list[list[int]] = field(default_factory=list)
    kept: bool = False
    leaving: bool = False
    pooled: bool = False
    lingers: bool = True
    leases: list[dict[str, Any]] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    events: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    """Fields that another version set: kept for that version, and not used."""

    def shown_values(self) -> dict[str, Any]:
        """The values that `status` shows as they are here."""
        return {key: value for key, value in self.to_json().items() if key not in _INNER}

    def to_json(self) -> dict[str, Any]:
        own = {one.name: getattr(self, one.name) for one in dataclasses.fields(self) if one.name != "extra"}
        return {**self.extra, **own, "devices": [one.to_json() for one in self.devices]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Attachment:
        """The inverse of `to_json`."""
        known, extra = _split(cls, data)
        return cls(**{**known, "devices": tuple(map(DeviceUse.from_json, data["devices"]))}, extra=extra)

    @property
    def holders(self) -> list[Holder]:
        """Holders that keep it, none where it is about to go."""
        processes = [(self.owner, self.owner_began)] if self.owner else [(one[0], one[1]) for one in self.users]
        found: list[Holder] = [ProcessHolder(*one) for one in processes]
        found += map(Lease.from_json, self.leases)
        stays = self.kept or not (self.snapshot or self.pooled)
        return [*found, MountHolder(self.mountpoint)] if stays and self.mountpoint and not self.owner else found

    def change(self, values: Mapping[str, Any]) -> None:
        """Let these attributes have other values."""
        known, extra = _split(Attachment, values)
        for name, value in known.items():
            setattr(self, name, value)
        self.extra |= extra


def attachment_of(
    request: AttachRequest, digest: str, manifest: Manifest, metadata: str, record_seconds: float, **shared: Any
) -> Attachment:
    """The attachment that a request asks for, of the image with this manifest and that digest, begun now.

    metadata: path of its metadata. record_seconds: unless the request says it. shared: what else it is made of.
    """
    recording, url = request.recording, redact(request.store.url)
    return Attachment(
        id=request.id,
        name=f"{url}#{request.image}",
        store=request.store._asdict(),
        image=digest,
        base=manifest.base or digest,
        metadata=metadata,
        devices=tuple(DeviceUse(one.tag, one.size, one.index) for one in manifest.devices),
        since=time.time(),
        begun=time.monotonic(),
        workload=recording.workload,
        owner=request.owner,
        owner_began=request.owner_began,
        mountpoint=request.mountpoint,
        namespace=request.namespace,
        ready_file=recording.ready_file,
        record_seconds=recording.seconds or record_seconds,
        **shared,
    )


@dataclass(slots=True)
class DaemonState:
    """All attachments by id; and what the kernel holds, devices being named by the digest of their index.

    lookups: lookups of each device by the kernel, less those that it forgot. handles: the device that each open
    handle is on. pages: the devices of which the kernel may have pages. known: size and store of every device in use,
    also of one that the kernel holds although nobody is attached to it any more.

    A handle's number is never used again. So when a call is asked again because the worker that had answered it died
    before the kernel heard, too much is held at most, and until the kernel forgets the device.
    """

    attachments: dict[str, Attachment] = field(default_factory=dict)
    lookups: dict[str, int] = field(default_factory=dict)
    handles: dict[int, str] = field(default_factory=dict)
    next_handle: int = 1
    pages: set[str] = field(default_factory=set)
    known: dict[str, dict[str, Any]] = field(default_factory=dict)

    def holders(self, index: str) -> int:
        """The number of handles that the kernel holds on this device."""
        return sum(1 for held in self.handles.values() if held == index)

    def apply(self, record: Mapping[str, Any]) -> None:
        """Make the change that `record` tells. Raises UnknownRecord."""
        ((kind, value),) = record.items()
        match kind:
            case "attach":
                attachment = Attachment.from_json(value)
                self.attachments[attachment.id] = attachment
                for device in attachment.devices:
                    self.known.setdefault(device.index, {"store": attachment.store, "size": device.size})
            case "change":
                if (one := self.attachments.get(value["id"])) is not None:
                    one.change(value)
            case "detach":
                self.attachments.pop(value, None)
            case "lookup":
                self.lookups[value] = self.lookups.get(value, 0) + 1
            case "forget":
                self._forget(*value)
            case "open":
                handle, index = value
                self.handles[handle] = index
                self.next_handle = max(self.next_handle, handle + 1)
            case "release":
                self.handles.pop(value, None)
            case "pages":
                self.pages.add(value)
            case "kernel":
                self.lookups |= value["lookups"]
                self.handles |= dict(value["handles"])
                self.next_handle = max(self.next_handle, value["next"])
                self.pages |= set(value["pages"])
            case "known":
                self.known |= value
            case _:
                raise UnknownRecord(kind)
        used = {device.index for one in self.attachments.values() for device in one.devices}
        used.update(self.handles.values())
        self.known = {index: facts for index, facts in self.known.items() if index in used}

    def _forget(self, index: str, count: int) -> None:
        left = self.lookups.pop(index, 0) - count
        if left > 0:
            self.lookups[index] = left
            return
        self.pages.discard(index)
        self.handles = {handle: held for handle, held in self.handles.items() if held != index}

    def records(self) -> Iterator[dict[str, Any]]:
        """The records that make this state from an empty one."""
        handles = list(self.handles.items())
        held = {"lookups": self.lookups, "handles": handles, "next": self.next_handle, "pages": sorted(self.pages)}
        yield {"kernel": held}
        for attachment in self.attachments.values():
            yield {"attach": attachment.to_json()}
        yield {"known": self.known}

    @classmethod
    def replayed(cls, payloads: Iterable[bytes]) -> DaemonState:
        """The state that these records make, but for those of another version."""
        state = cls()
        unknown: Counter[str] = Counter()
        for payload in payloads:
            try:
                state.apply(json.loads(payload))
            except UnknownRecord as error:
                unknown[error.kind] += 1
        if unknown:
            state.next_handle += _UNHEARD
            kinds = ", ".join(f"{kind} ({count})" for kind, count in sorted(unknown.items()))
            _log.warning(
                "records of an earlier worker that this version does not know are left out: %s; what stands on them "
                "answers ESTALE",
                kinds,
            )
        return state


def _split(kind: type, data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of `data` what is a field of this dataclass, and the rest, which another version wrote."""
    names = {one.name for one in dataclasses.fields(kind)} - {"extra"}
    known = {name: value for name, value in data.items() if name in names}
    return known, {name: value for name, value in data.items() if name not in names}


class StateJournal:
    """The `state` that the journal tells, which the supervisor keeps."""

    def __init__(self, journal: MemoryJournal) -> None:
        self._journal = journal
        self.state = DaemonState.replayed(journal.load())

    def record(self, record: dict[str, Any]) -> None:
        """Make a change (`imagefs.daemon.state`), and have it in the journal before."""
        self._journal.append(json.dumps(record).encode())
        self.state.apply(record)
        if self._journal.full():
            self._journal.replace(json.dumps(one).encode() for one in self.state.records())

    def change(self, attachment: Attachment, **values: Any) -> None:
        """Let these attributes have other values."""
        self.record({"change": {"id": attachment.id, **values}})


_INNER = {
    "store",
    "devices",
    "begun",
    "owner_began",
    "namespace",
    "leaving",
    "pooled",
    "lingers",
    "leases",
    "shown",
    "events",
}
"""Of an attachment: what `status` does not show, or in another way."""
