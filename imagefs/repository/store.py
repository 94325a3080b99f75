"""A stripefs store as a repository, in which each object is a file; and the repository that a URL names.

A URL of stripefs is a store. `oci://HOST[:PORT]/NAME[?PARAMETER=VALUE&…]` is a repository of a container registry
(`imagefs.repository.registry`):

    scheme=http       speak plain http, which needs no certificate and hides nothing
    ca-file=FILE      certificates to trust besides, in place of those in /etc/docker/certs.d/HOST
    authfile=FILE     the file of credentials, in place of those of podman, skopeo and Docker
    lookup=brief      look for the lazy image of a container image of the same repository alone, in one request
"""

from __future__ import annotations

import base64
import contextlib
import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlencode

from imagefs.errors import DamagedObject
from imagefs.repository.base import Capabilities, RangeReader, Repository
from stripefs.errors import ConfigError, Exists
from stripefs.settings import StoreSettings, redact
from stripefs.store.base import Attributes, Buffer, Status, Store
from stripefs.store.url import open_store

if TYPE_CHECKING:
    from stripefs.write.file_lock import FileLock
    from stripefs.write.store_ops import StoreClock

__all__ = ["REGISTRY", "StoreRepository", "is_registry", "open_repository", "registry_url"]


class StoreRepository(Repository):
    """The files of `store`, which is closed with this."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.url = store.url
        can = store.capabilities
        self.capabilities = Capabilities(
            put=can.put,
            list=can.listing,
            put_if_absent=can.put_if_absent,
            list_objects=can.listing,
            replication=can.replication,
        )
        self._clock: StoreClock | None = None

    def read(self, path: bytes, most: int = 0) -> Buffer:
        if not most:
            return self.store.get(path)
        handle = self.store.open(path)
        try:
            if handle.status.length > most:
                raise DamagedObject(f"{path.decode()} in {self.url} has {handle.status.length} bytes")
            return handle.read(0, handle.status.length) if handle.status.length else b""
        finally:
            handle.close()

    def stat(self, path: bytes) -> Status:
        return self.store.stat(path)

    def put(self, path: bytes, data: bytes, *, replace: bool = False) -> None:
        self.store.put(path, [data], replace=replace)

    def entries(self, folder: bytes) -> list[Status]:
        return [status for batch in self.store.scandir(folder) for status in batch]

    def remove(self, path: bytes) -> None:
        self.store.remove(path)

    def set_replication(self, path: bytes, replicas: int) -> None:
        self.store.set_attributes(path, Attributes(replication=replicas))

    def open(self, path: bytes, length: int) -> RangeReader:
        return self.store.open_checked(path, length)

    def now_ns(self) -> int:
        if self._clock is None:
            from stripefs.write.store_ops import StoreClock  # only those who write need it

            self._clock = StoreClock(self.store)
        return self._clock.now_ns()

    def lock(self, path: bytes, owner: str, seconds: float) -> FileLock:
        from stripefs.write.file_lock import acquire  # only those who install need it

        if self.store.capabilities.writes:
            with contextlib.suppress(Exists):
                self.store.mkdir(path.rpartition(b"/")[0])
        return acquire(self.store, path, owner=owner, seconds=seconds)

    def close(self) -> None:
        self.store.close()


REGISTRY = "oci://"
_URL = re.compile(
    r"oci://(?:(?P<user>[^/?#@]*)@)?(?P<host>[A-Za-z0-9.-]+(?::\d+)?|\[[0-9a-fA-F:]+\](?::\d+)?)"
    r"/(?P<name>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)/?(?:\?(?P<query>.*))?"
)
_PARAMETERS = ("scheme", "ca-file", "authfile", "lookup")


def is_registry(url: str) -> bool:
    """Tells whether the URL names a repository of a container registry."""
    return url.startswith(REGISTRY)


def registry_url(host: str, name: str, **parameters: str) -> str:
    """The URL of the repository `name` at HOST[:PORT]; parameters that are "" are left out, `_` stands for `-`."""
    given = {key.replace("_", "-"): value for key, value in parameters.items() if value}
    return f"{REGISTRY}{host}/{name}" + (f"?{urlencode(given)}" if given else "")


def open_repository(settings: StoreSettings, *, make: bool = False) -> Repository:
    """The repository at `settings.url`, connected; with `make` it may be new. Raises ConfigError and StoreErrors.

    A registry is not asked before the first call, and makes a repository when something is stored there.
    """
    if not is_registry(settings.url):
        return StoreRepository(open_store(settings, make=make))
    from imagefs.repository.registry import RegistryRepository  # httpx takes 9 MiB
    from imagefs.repository.registry_client import RegistryAccess, RegistryClient
    from imagefs.repository.registry_credentials import DOCKER_HUB

    shown = redact(settings.url)
    match = _URL.fullmatch(settings.url)
    if match is None:
        raise ConfigError(f"{shown!r} names no repository of a registry", hint="write oci://HOST/NAME")
    given = dict(parse_qsl(match["query"] or "", keep_blank_values=True))
    if unknown := [name for name in given if name not in _PARAMETERS]:
        raise ConfigError(f"unknown parameter {unknown[0]!r} in {shown!r}", hint=f"known are {', '.join(_PARAMETERS)}")
    if (scheme := given.get("scheme", "https")) not in ("http", "https"):
        raise ConfigError(f"{shown!r}: scheme is http or https")
    if (lookup := given.get("lookup", "")) not in ("", "brief"):
        raise ConfigError(f"{shown!r}: lookup is brief, or left out")
    access = RegistryAccess(
        given.get("authfile", ""),
        given.get("ca-file", ""),
        (scheme,),
        timeout=settings.host_timeout,
        known=base64.b64encode(unquote(match["user"]).encode()).decode() if match["user"] else "",
    )
    host = DOCKER_HUB if match["host"] == "docker.io" else match["host"]
    return RegistryRepository(shown, RegistryClient(host, match["name"], access), brief=bool(lookup))
