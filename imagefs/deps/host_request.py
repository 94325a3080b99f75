"""The request of a start on a host, as plain values."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from imagefs.daemon.protocol import Recording
from imagefs.deps.resolver import Held
from imagefs.deps.scratch import Scratch
from imagefs.deps.target import TargetUser
from imagefs.settings import TreeOptions
from stripefs.settings import StoreSettings

__all__ = ["HostRequest"]


class HostRequest(NamedTuple):
    """The request of a start on this host.

    key: the document of the key. target: where, absolute, with links resolved. command: installs it. python: the
    interpreter that compiles it; environment: its values for the markers of requirements. users: who uses it; kept: it
    stays mounted without them. wait: until it is published. patience: seconds to wait for another host that installs.
    probe: a program in Python that must run with what is mounted, "" for none. sites, beside, checked, allowed,
    tolerant and setuid: as in `imagefs.deps.check.tree.Installation`; lock: as in `imagefs.deps.publish.PublishJob`.
    held: how the installer is held to it, None for not at all; forget: drops a lock that does not hold any more.
    scratch: what the installer shares with the resolver. unchanged: whether the key is still that of what is installed
    from, which may change meanwhile.
    """

    store: StoreSettings
    key: Any
    target: str
    command: Sequence[str]
    python: str
    environment: Mapping[str, str]
    users: Sequence[TargetUser]
    sites: Sequence[str] = ()
    beside: Sequence[str] = ()
    kept: bool = False
    wait: bool = False
    patience: float = 600.0
    probe: str = ""
    checked: bool = False
    allowed: Sequence[str] = ()
    tolerant: bool = False
    setuid: bool = False
    wheels: Sequence[Sequence[Any]] = ()
    lock: Any = None
    held: Held | None = None
    forget: Callable[[], None] | None = None
    scratch: Scratch | None = None
    unchanged: Callable[[], bool] | None = None
    recording: Recording = Recording("deps")
    tree: TreeOptions = TreeOptions()

    @property
    def interpreter(self) -> str:
        """The interpreter that imports from the target: its own interpreter where it is an environment."""
        own = os.path.join(self.target, "bin/python")
        return own if os.path.exists(own) else self.python
