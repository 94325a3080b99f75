"""Asking the daemon: one JSON object there, one back (`stripefs.fuse.control_server`), version 1.

announce  id, image, plain      it will be attached under this id: its store is asked now; nobody waits for an answer
attach    id, store, image, …   the image's documents are here and its devices served; where they are
use       as attach, snapshot   one more process uses a dependency snapshot, which may be mounted already
note      store, kind, name     what a start has left in the store for later ones
unrecord  id, why               what comes now is no start like others: no trace is made of it
mounted   id, plane, device     it is, and lasts from now on until it is unmounted; one with a device others may copy
shown     id, path, device      where others may copy the mount of a container
ready     id or mountpoint      the start is over: record and replay are judged
detach    id                    the use of this attachment ends
hold, release, leases, find, usage, discard, capabilities    for snapshotters (`imagefs.daemon.protocol`)
status, stop                    as every supervisor's worker answers
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from imagefs.daemon import processes
from imagefs.daemon.protocol import (
    Attached,
    AttachRequest,
    FoundImage,
    HeldImage,
    HintDocument,
    HoldRequest,
    Lease,
    Recording,
    SharedSnapshot,
    SnapshotKey,
    SnapshotUse,
    source_digest,
)
from imagefs.errors import DamagedBlock, DamagedObject, NoSuchImage
from imagefs.settings import DaemonSettings
from imagefs.startup.emission import events
from stripefs.errors import MountError
from stripefs.fuse.control import ask
from stripefs.settings import StoreSettings

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from typing import Any, Literal

    from imagefs.repository.snapshots import Note

__all__ = ["Client", "NoDaemon", "new_identifier"]

_PATIENCE = 30.0
"""Seconds for an answer that needs no store: a worker that is being replaced is up again in two."""

_ANSWERS_WITHIN = 2.0
"""Seconds beyond its own timeout that an answer may take which comes from memory."""

_DEATHS = 2
"""Workers that may die over one request: the third, with nothing answered in between, would end all mounts."""

_OURS = ("runtime", "log_level", "log_format")
"""Settings that name the daemon, or are for this program as well."""

_NEVER = float("inf")

_LOOKS_AGAIN = 0.05
"""Seconds between two looks for a daemon that is waited for."""

_STARTS = 3
"""Daemons to start when one after the other ends before it answers: somebody stops it while we come."""


class NoDaemon(MountError):
    """No daemon listens."""


class Client:
    """The daemon of `settings.runtime`. Raises MountError where it does not answer, and what it says went wrong.

    asked: options by the settings that somebody chose. A daemon that runs with others keeps them, which is logged.
    starts: start a daemon where none runs; a service beside one that somebody else starts raises NoDaemon instead.
    waits: seconds from when the daemon was first missed for which requests wait for the next one.
    """

    def __init__(
        self,
        settings: DaemonSettings,
        asked: Mapping[str, str] | None = None,
        *,
        starts: bool = True,
        waits: float = 0.0,
    ) -> None:
        self.settings = settings
        self._asked = asked or {}
        self._starts = _STARTS if starts else 0
        self._waits = waits
        self._missed_since = _NEVER

    def attach(
        self,
        store: StoreSettings,
        image: str,
        recording: Recording,
        *,
        owner: int = 0,
        mountpoint: str = "",
        identifier: str = "",
        shares: bool = False,
        meanwhile: Callable[[], None] | None = None,
        span: str = "",
    ) -> Attached:
        """Have the image of this tag or digest served; the daemon is started where none runs.

        owner: the process with whose end the attachment ends, unless it is mounted by then; 0 for one that lasts until
        `detach`. mountpoint: where it will be mounted, absolute, links resolved; "" for where only the owner sees it.
        identifier: of the attachment, `new_identifier()` unless given. shares: the mount of a lazy image is copied from
        another client's, or made and reported by `shown` or `mounted`. meanwhile: what to do while the daemon is busy.
        span: of start-up events, which contains this.
        """
        request = self._request(store, image, recording, owner, mountpoint)
        request = request._replace(id=identifier or request.id, shares=shares)
        if span:
            request = request._replace(events={**request.events, "parent": span})
        answer = self._ask_started("attach", request.to_json(), meanwhile)
        self._compare(answer.get("settings") or {})
        return Attached.from_json(answer)

    def use(
        self,
        store: StoreSettings,
        snapshot: SnapshotUse,
        recording: Recording,
        *,
        mountpoint: str,
        mounted: bool,
        timeout: float,
    ) -> Attached | SharedSnapshot | Literal["stale"] | None:
        """Have a dependency snapshot served at `mountpoint` for its users; None where the store has none of that name.

        mounted: whether one of ours is to be seen there. "stale" where that is not this daemon's: unmount it, and ask
        again. An `Attached` one is to be mounted and then reported, as after `attach`. timeout: seconds for the store.
        Raises DamagedObject for a snapshot that is damaged, or of which the store lacks a part.
        """
        request = self._request(store, f"deps/{snapshot.name}", recording, os.getpid(), mountpoint)
        answer = self._use(request._replace(snapshot=snapshot, mounted=mounted, timeout=timeout))
        if answer.get("missing"):
            return None
        if answer.get("stale"):
            return "stale"
        if answer.get("shared"):
            return SharedSnapshot(answer["id"], answer["image"])
        return Attached.from_json(answer)

    def attach_layer(
        self,
        store: StoreSettings,
        name: str,
        recording: Recording,
        *,
        timeout: float,
        shares: bool = False,
        hint: tuple[str, str] | None = None,
    ) -> Attached | None:
        """Have the dependency snapshot of this name served for containers of this process, which have it above their
        image; None where the store has none. timeout: seconds for the store. shares: as for `attach`. hint: name and
        document of one that the store then gets, where it can be written to. Raises DamagedObject as `use` does."""
        request = self._request(store, f"deps/{name}", recording, os.getpid(), "")
        request = request._replace(snapshot=SnapshotUse(name), timeout=timeout, shares=shares)
        answer = self._use(request._replace(hint=HintDocument(*hint)) if hint is not None else request)
        return None if answer.get("missing") else Attached.from_json(answer)

    def note(self, store: StoreSettings, kind: Note, name: str, timeout: float) -> str:
        """A note of a start for later ones in the store, "" where there is none of this name.

        Raises MountError where the daemon does not answer within `timeout` seconds, and what the store raises.
        """
        asked = {"store": store._asdict(), "kind": kind, "name": name, "timeout": timeout}
        return str(self._ask("note", timeout + _ANSWERS_WITHIN, **asked)["note"])

    def _compare(self, in_force: Mapping[str, Any]) -> None:
        """Tell once of options that somebody chose and the daemon does not have."""
        ours, asked = self.settings._asdict(), self._asked
        if in_force:
            self._asked = {}
        for field, option in asked.items():
            if field in in_force and field not in _OURS and in_force[field] != ours[field]:
                import logging  # takes long to load

                logging.getLogger(__name__).warning(
                    "--%s is not in force: the daemon that runs has %s; imagefs daemon --stop ends it",
                    option,
                    _shown(field, in_force[field]),
                )

    def _use(self, request: AttachRequest) -> dict[str, Any]:
        answer = self._ask_started("use", request.to_json())
        self._compare(answer.get("settings") or {})
        if broken := answer.get("broken"):
            kind = DamagedBlock if broken.get("block") else DamagedObject
            raise kind(broken["message"], hint=broken["hint"])
        return answer

    def _request(
        self, store: StoreSettings, image: str, recording: Recording, owner: int, mountpoint: str
    ) -> AttachRequest:
        return AttachRequest(
            new_identifier(),
            store,
            image,
            owner,
            processes.began(owner) if owner else 0,
            mountpoint,
            processes.namespace(),
            self.settings.io_timeout,
            recording,
            events=events().identity() or {},
        )

    def _ask_started(
        self, operation: str, request: dict[str, Any], meanwhile: Callable[[], None] | None = None
    ) -> dict[str, Any]:
        """Ask the daemon, which is started where none runs."""
        for starts in range(self._starts + 1):
            if starts:
                from imagefs.daemon.launcher import ensure  # not needed by most, who find a daemon

                ensure(self.settings)
            try:
                return self._ask(operation, float(request["timeout"]) + _PATIENCE, meanwhile, **request)
            except NoDaemon:
                if starts == self._starts:
                    raise
        raise AssertionError("the last try answers or raises")

    def mounted(self, attached: Attached, plane: str, device: str = "") -> None:
        """Say that the image is mounted where the attachment said, and lasts until it is unmounted. device: MAJOR:MINOR
        of the image's EROFS there, which others may copy."""
        self._ask("mounted", _PATIENCE, id=attached.id, plane=plane, device=device)

    def shown(self, attached: Attached, path: str, device: str) -> None:
        """Others may copy our mount from `path`; from nowhere where it is ""."""
        self._ask("shown", _PATIENCE, id=attached.id, path=path, device=device)

    def unrecord(self, identifier: str, why: str) -> None:
        """Make no trace of the start of this attachment."""
        self._ask("unrecord", _PATIENCE, id=identifier, why=why)

    def hold(
        self,
        store: StoreSettings,
        image: str,
        lease: Lease,
        *,
        workload: str = "default",
        above: Sequence[tuple[StoreSettings, str]] = (),
        start: Mapping[str, Any] | None = None,
    ) -> HeldImage:
        """Have the image mounted until the lease is released; the daemon is started where none runs.

        image: as for `HoldRequest`. above: stores and names of snapshots to be stacked above, the uppermost first;
        those that cannot be had are in the answer's `unusable`. start: to which events belong, as `HoldRequest` has it.
        Asking again changes nothing, and is quick where the image is named by its digest. Raises NoSuchImage,
        DamagedObject, MountError, and what keeps the image from being mounted.
        """
        keys = tuple(SnapshotKey(where, key) for where, key in above)
        request = HoldRequest(
            store, image, lease, processes.namespace(), self.settings.io_timeout, workload, keys, start or {}
        ).to_json()
        answer = self._ask_started("hold", request)
        for kind, error in (("missing", NoSuchImage), ("damaged", DamagedObject)):
            if told := answer.get(kind):
                raise error(told["message"], hint=told["hint"])
        return HeldImage.from_json(answer)

    def find(self, stores: Sequence[StoreSettings], source: str, timeout: float) -> FoundImage | None:
        """The image that was built from the OCI manifest with this digest (`sha256:HEX`), in the first of these stores
        that has one; None where none is known to have it within `timeout` seconds. Nothing is mounted.

        Raises MountError where the daemon does not answer, ConfigError for what is no digest.
        """
        asked = {"stores": [store._asdict() for store in stores], "source": source_digest(source), "timeout": timeout}
        answer = self._ask("find", timeout + _ANSWERS_WITHIN, **asked)
        return FoundImage(answer["image"], stores[answer["store"]]) if answer["image"] else None

    def release(self, lease: Lease, *, at_once: bool = False) -> None:
        """End the lease, if there is one. at_once: what nobody holds any more is unmounted now, not after a while.

        Raises MountError where the daemon does not answer.
        """
        self._ask("release", _PATIENCE, lease=lease._asdict(), at_once=at_once)

    def leases(self, client: str = "") -> list[HeldImage]:
        """The leases of a client, of all unless one is named; without configs."""
        return [HeldImage.from_json(one) for one in self._ask("leases", _PATIENCE, client=client)["leases"]]

    def usage(self, image: str) -> dict[str, tuple[int, int]]:
        """Bytes on disk and inodes of each part of an image that is in the cache now, by the name of the part. Images
        may share parts. An image of which the daemon knows nothing has none.

        Raises MountError where the daemon or its disk does not answer.
        """
        parts = self._ask("usage", _PATIENCE, image=image)["parts"]
        return {str(name): (int(size), int(inodes)) for name, (size, inodes) in parts.items()}

    def discard(self, image: str, parts: Iterable[str]) -> None:
        """Say that this client needs the image no more: these parts of it, as `usage` names them, leave the cache when
        nothing uses them. Raises MountError where the daemon does not answer."""
        self._ask("discard", _PATIENCE, image=image, parts=sorted(parts))

    def detach(self, identifier: str) -> None:
        self._add(self._ask("detach", _PATIENCE, id=identifier))

    @staticmethod
    def _add(answer: dict[str, Any]) -> dict[str, Any]:
        """The answer without the events in it, which become ours to write."""
        if told := answer.pop("events", None):
            events().add(told)
        return answer

    def ready(self, which: str, timeout: float = _PATIENCE) -> dict[str, Any]:
        """Tell that the start of an attachment (its id, or its mountpoint) is over; what its replay was worth."""
        return self._add(self._ask("ready", timeout, which=which))

    def status(self) -> dict[str, Any]:
        return self._ask("status", _PATIENCE)

    def stop(self, *, force: bool = False) -> None:
        """End the daemon. Devices that mounts still read are kept for the next one for a while, unless `force`."""
        self._ask("stop", _PATIENCE, force=force)

    def _ask(
        self, operation: str, timeout: float, meanwhile: Callable[[], None] | None = None, /, **values: Any
    ) -> dict[str, Any]:
        request = {"op": operation, **values}
        while True:
            try:
                answer = ask(
                    self.settings.socket,
                    request,
                    timeout,
                    what="the imagefs daemon",
                    deaths=_DEATHS,
                    meanwhile=meanwhile,
                )
            except FileNotFoundError as error:
                self._missed_since = min(self._missed_since, time.monotonic())
                if time.monotonic() < self._missed_since + self._waits:
                    time.sleep(_LOOKS_AGAIN)
                    continue
                user = "" if os.geteuid() == 0 else " for this user"
                raise NoDaemon(
                    f"no imagefs daemon runs{user} ({self.settings.socket})", hint="imagefs mount starts one"
                ) from error
            self._missed_since = _NEVER
            return answer


def _shown(field: str, value: Any) -> str:
    """A setting of the daemon for people."""
    if field in ("cache_size", "memory"):
        from stripefs.units import format_size  # takes long to load

        return format_size(value) if value else "half of what was free"
    units = {"background_rate": "bytes a second", "read_ahead_kb": "KiB"}
    units |= dict.fromkeys(("io_timeout", "cache_age", "record_seconds"), "s")
    if isinstance(value, float):
        value = f"{value:g}"
    return f"{value} {units[field]}" if field in units else str(value) or "none"


def new_identifier() -> str:
    return os.urandom(16).hex()
