"""Typed documents of the daemon's protocol: the holders of a mount, and what a snapshotter asks for and is told.

A mount is held by processes (until it stands, or as long as they use it), by itself where somebody is to unmount it, or
by leases. Operations for leases:

    hold            store, image, lease   the image is mounted on this host until the lease is released; where
    release         lease                 the lease ends; the mount stays for a while, and goes when nobody has it
    leases          client                the leases of a client
    capabilities                          the version of the protocol, and what this daemon can do beyond it

Keys that are not known are ignored, those with a default may be missing. So a newer client is understood as far as the
daemon goes, and asks for `capabilities` where that is not enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from stripefs.errors import ConfigError

__all__ = [
    "CAPABILITIES",
    "VERSION",
    "Held",
    "HoldRequest",
    "Holder",
    "Lease",
    "MountHolder",
    "ProcessHolder",
    "holder_json",
]

VERSION = 1
CAPABILITIES = ("leases",)


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

    def to_json(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Lease:
        """Raises ConfigError for one without a name or a client."""
        lease = cls(str(data.get("name") or ""), str(data.get("client") or ""), str(data.get("label") or ""))
        if not lease.name or not lease.client:
            raise ConfigError("a lease has a name and a client")
        return lease

    def is_of(self, data: Mapping[str, Any]) -> bool:
        """Whether `data` describes this lease, whatever its label is."""
        return (data.get("name"), data.get("client")) == (self.name, self.client)


Holder = ProcessHolder | MountHolder | Lease


def holder_json(holder: Holder) -> dict[str, Any]:
    """As `status` shows it."""
    kinds: dict[type, str] = {ProcessHolder: "process", MountHolder: "mount", Lease: "lease"}
    return {"kind": kinds[type(holder)], **holder._asdict()}


class HoldRequest(NamedTuple):
    """store: the fields of `StoreSettings`. image: a tag or digest there. namespace: the mount namespace of the client.
    timeout: seconds for the store, 0 for the daemon's own. workload: under which name the start is recorded."""

    store: dict[str, Any]
    image: str
    lease: Lease
    namespace: int
    timeout: float = 0.0
    workload: str = "default"

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "lease": self.lease.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HoldRequest:
        """Raises ConfigError."""
        try:
            return cls(
                dict(data["store"]),
                str(data["image"]),
                Lease.from_json(data["lease"]),
                int(data["namespace"]),
                float(data.get("timeout") or 0.0),
                str(data.get("workload") or "default"),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"this is no request for a lease: {error!r}") from error


class Held(NamedTuple):
    """A mount that a lease holds.

    lowerdir: the tree of the image, read-only. image: the digest of its manifest. config: the OCI image config.
    """

    lease: Lease
    lowerdir: str
    image: str
    config: Mapping[str, Any] = {}

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "lease": self.lease.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Held:
        lease = Lease.from_json(data["lease"])
        return cls(lease, str(data["lowerdir"]), str(data["image"]), dict(data.get("config") or {}))
