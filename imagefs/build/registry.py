"""Blobs of a registry, fetched so that a connection that drops costs what was under way and no more.

skopeo, which copies the image in the end, fetches a blob from its beginning again when a connection drops. So the
large ones are fetched here before, into the image layout that it then finds them in: each goes on by range where it was
broken off, after a pause that doubles, and its digest is checked over the whole. It fails when nothing came for
`io_timeout`. What this module is refused (a mirror that only skopeo knows, a login by browser) is left to skopeo.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from imagefs.build.oci import Descriptor
from imagefs.errors import BuildError, HostileLayer
from imagefs.repository.registry_auth import DOCKER_HUB
from imagefs.repository.registry_client import RegistryAccess, RegistryClient
from stripefs.errors import StoreError, Transient

__all__ = ["REAL_CLOCK", "Blobs", "Clock", "Refused", "Registry", "backoff", "repository_of"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0


class Registry(NamedTuple):
    """How registries are spoken to: authfile "" means skopeo's own, and tls_verify False allows plain http too.

    io_timeout: seconds without a byte after which fetching fails.
    """

    authfile: str = ""
    tls_verify: bool = True
    io_timeout: float = 90.0


class Clock(NamedTuple):
    """Time in seconds, and how to wait."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


REAL_CLOCK = Clock()


class Refused(Exception):
    """The registry does not give it to us as we are."""


def backoff(tries: int) -> float:
    """Seconds to wait before the next of these many tries in a row."""
    return float(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(tries - 1, 20)))


class Blobs:
    """The blobs of the repository that `docker://REFERENCE` names. Used by several threads."""

    def __init__(self, reference: str, registry: Registry, clock: Clock = REAL_CLOCK) -> None:
        self._registry, self._clock = registry, clock
        host, name = repository_of(reference)
        schemes = ("https",) if registry.tls_verify else ("https", "http")
        access = RegistryAccess(
            registry.authfile, schemes=schemes, verify=registry.tls_verify, timeout=registry.io_timeout
        )
        self._client = RegistryClient(host, name, access)

    def close(self) -> None:
        self._client.close()

    def fetch(self, blob: Descriptor, target: Path, progress: Callable[[int], None]) -> None:
        """Write the blob to the new file `target`, which is there once it is whole.

        Raises Refused, BuildError where nothing comes any more, HostileLayer for other bytes than its digest says, and
        OSError for the disk.
        """
        part = target.with_name(f".{target.name}.part")
        try:
            with part.open("xb") as file:
                seen = self._receive(blob, file, progress)
            if f"sha256:{seen}" != blob.digest:
                raise HostileLayer(f"{blob.digest} holds other bytes than its digest says")
            part.rename(target)
        finally:
            part.unlink(missing_ok=True)

    def _receive(self, blob: Descriptor, file: Any, progress: Callable[[int], None]) -> str:
        digest, done, tries = hashlib.sha256(), 0, 0
        last = self._clock.now()
        while True:
            error: Exception
            try:
                headers = {"Range": f"bytes={done}-"} if done else {}
                with self._client.answer("GET", f"/blobs/{blob.digest}", headers=headers) as response:
                    if done and response.status_code != 206:  # it knows no ranges
                        file.seek(0)
                        file.truncate()
                        progress(-done)
                        digest, done = hashlib.sha256(), 0
                    for data in response.iter_raw():
                        data = data[: blob.size - done]
                        file.write(data)
                        digest.update(data)
                        done += len(data)
                        progress(len(data))
                        last, tries = self._clock.now(), 0
                        if done == blob.size:
                            break
                if done == blob.size:
                    return digest.hexdigest()
                error = OSError("the connection ended early")
            except (Transient, httpx.HTTPError) as met:
                error = met
            except StoreError as met:
                raise Refused(met.message) from met
            tries += 1
            pause = backoff(tries)
            if self._clock.now() + pause - last >= self._registry.io_timeout:
                raise BuildError(
                    f"{blob.digest} cannot be fetched: {self._client.host} sent nothing for"
                    f" {self._registry.io_timeout:g} s ({error})",
                    hint="nothing was published; --io-timeout waits longer",
                )
            self._clock.sleep(pause)


def repository_of(reference: str) -> tuple[str, str]:
    """Host and name of `docker://REFERENCE`."""
    name = reference.removeprefix("docker://").partition("@")[0]
    host, slash, rest = name.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        host, rest = "docker.io", name if slash else f"library/{name}"
    head, slash, last = rest.rpartition("/")
    return DOCKER_HUB if host == "docker.io" else host, f"{head}{slash}{last.partition(':')[0]}"
