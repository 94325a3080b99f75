"""One FUSE connection at its mountpoint: mounted, tuned, found again by a successor, unmounted and ended.

It belongs to the supervisor and serves nothing. Its descriptor is what workers get, and a copy of that may be with a
keeper (`stripefs.fuse.keeper`).
"""

from __future__ import annotations

import logging
import os
import select
import time
from typing import Any

from stripefs.errors import MountError
from stripefs.fuse import kernel, mounting
from stripefs.fuse.ipc import MountSpec

__all__ = ["FuseConnection"]

_log = logging.getLogger(__name__)

_ENDS_WITHIN = 5.0
"""Seconds for a connection to end after the unmount. It does so at once when nothing else holds it; a container that is
just being created has a copy of every mount of the host until it leaves the host's root."""

_PAUSE = 0.05


class FuseConnection:
    """The connection of a mount. device: its descriptor, -1 while there is none. tuning: what `apply_limits` found."""

    def __init__(self, spec: MountSpec) -> None:
        self._spec = spec
        self._path = spec.mount.mountpoint
        self._mounted: kernel.MountPoint | None = None
        self.device = -1
        self.init = kernel.Init(b"", can_resend=False)
        self.tuning: dict[str, dict[str, object]] = {}

    def mount(self, source: str) -> None:
        """A new connection, whose INIT is read. Raises MountError."""
        self.device = mounting.mount_device(self._spec, source)
        self._mounted = kernel.find_mount(self._path)
        self.init = kernel.read_init(self.device)

    def state(self) -> dict[str, Any]:
        """The state that `adopt` needs besides the descriptor."""
        return {"init": self.init.message.hex(), "mounted": self._mounted.device if self._mounted is not None else ""}

    def adopt(self, state: dict[str, Any], device: int) -> None:
        """The connection that another supervisor had, with what its worker was answering queued again.

        Raises MountError where it is not mounted here any more.
        """
        self.device = device
        self.init = kernel.parse_init(bytes.fromhex(state["init"]))
        found = kernel.find_mount(self._path)
        if found is None or found.device != state["mounted"] or not self.alive or not self.resend():
            raise MountError(
                f"{self._path} was left mounted, and is not to be seen here",
                hint="start it in the mount namespace where it was",
            )
        self._mounted = found

    @property
    def alive(self) -> bool:
        return kernel.connected(self.device)

    @property
    def can_resend(self) -> bool:
        """True when another worker can take over."""
        return self._spec.mount.resend and self.init.can_resend

    def resend(self) -> bool:
        """Queue the requests again that a worker was answering when it ended; True if that is done."""
        if not self.can_resend:
            return False
        try:
            kernel.resend(self.device)
        except OSError as error:
            _log.error("the kernel does not queue requests again: %s", error)
            return False
        return True

    def apply_limits(self, *, log: bool) -> None:
        """After INIT is answered, which resets them, set the kernel's limits. log: log those that cannot be set."""
        if self._mounted is None:
            return
        limits = self._spec.mount
        self.tuning = kernel.tune(self._mounted, limits.read_ahead_kb, limits.max_background)
        for name, report in self.tuning.items():
            if report["limit"] and log:
                _log.info(
                    "%s stays at %s instead of %s: %s", name, *(report[key] for key in ("now", "wanted", "limit"))
                )

    @property
    def is_attached(self) -> bool:
        """True when the mount is where it was put: not unmounted lazily before, and not covered by another."""
        found = kernel.find_mount(self._path)
        return self._mounted is not None and found is not None and found.device == self._mounted.device

    def detach(self, *, spare_used: bool = False, free_within: float = 0.0) -> bool:
        """Take the mount out of the tree; False when its connection outlives that because someone still uses it.

        spare_used: one that is in use stays where it is. free_within: the seconds that it may take to become free; a
        process that forked keeps its parent's files until its exec.
        """
        if not self.is_attached:
            return False
        end = time.monotonic() + free_within
        try:
            while not (free := mounting.unmount_unused(self._path)) and time.monotonic() < end:
                time.sleep(_PAUSE)
            return free if free or spare_used else not mounting.detach(self._path)
        except MountError as error:
            _log.warning("%s", error)
            return False

    def wait_ended(self) -> bool:
        """Tells whether the unmount ended the connection. A copy of the mount in another mount namespace keeps it."""
        poll = select.poll()
        poll.register(self.device, 0)
        return bool(poll.poll(_ENDS_WITHIN * 1000))

    def abort(self) -> bool:
        """End it, in use or not. False where it ends only with its last descriptor."""
        return self._mounted is not None and kernel.abort(self._mounted.connection)

    def close(self) -> None:
        """Close our descriptor."""
        if self.device >= 0:
            os.close(self.device)
            self.device = -1
