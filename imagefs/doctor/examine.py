"""All checks of one host, in the order in which somebody would mend them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from imagefs.doctor.containerd import gather, judge, uses_us
from imagefs.doctor.finding import CheckResult
from imagefs.doctor.host import cache_findings, kernel_findings, rights_findings, runtime_findings
from imagefs.doctor.services import daemon_findings, snapshotter_findings
from imagefs.doctor.stores import store_findings
from imagefs.repository.store import is_registry
from imagefs.settings import DaemonSettings
from stripefs.settings import StoreSettings

__all__ = ["ExaminedHost", "examine"]


class ExaminedHost(NamedTuple):
    """The objects of an examination.

    stores: of either kind, with how each is reached. socket, root: of the snapshotter. containerd: its configuration.
    write: whether stores may be written to for a moment.
    """

    daemon: DaemonSettings
    stores: Sequence[StoreSettings]
    socket: str
    root: str
    containerd: str = "/etc/containerd/config.toml"
    write: bool = True


def examine(host: ExaminedHost) -> Iterator[CheckResult]:
    """The findings, each as soon as it is known."""
    yield from rights_findings()
    yield from kernel_findings(host.daemon.cache)
    yield from cache_findings(host.daemon.cache, host.daemon.cache_size)
    yield from runtime_findings()
    facts = gather(host.containerd)
    yield from judge(facts, host.socket, host.root)
    needed = facts.config is not None and uses_us(facts.config)
    yield from daemon_findings(host.daemon, needed=needed)
    yield from snapshotter_findings(host.socket, needed=needed)
    for store in host.stores:
        if is_registry(store.url):
            from imagefs.doctor.stores import registry_findings  # httpx takes 9 MiB

            yield from registry_findings(store, write=host.write)
        else:
            yield from store_findings(store, write=host.write)
