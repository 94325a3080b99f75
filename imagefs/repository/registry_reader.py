"""Blobs of a registry, read by ranges.

Most registries send a reader on to where the blob lies, at an address that holds for some minutes. It is kept and asked
until it refuses; then the registry is asked again.
"""

from __future__ import annotations

import re

import httpx

from imagefs.repository.registry_client import RegistryClient
from stripefs.errors import HostFailed, NotFound, PermissionDenied, Unsupported
from stripefs.store.allocator import uninitialised
from stripefs.store.base import Buffer

__all__ = ["BlobReader"]

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(?:\d+|\*)")


class BlobReader:
    """The blob with this digest, for many threads. It is looked for when it is first read."""

    def __init__(self, client: RegistryClient, digest: str) -> None:
        self._client = client
        self._digest = digest
        self._place = ""

    def read(self, offset: int, length: int) -> Buffer:
        """Exactly `length` bytes from `offset`, unchecked. Raises StoreErrors; Transient ones are worth another try."""
        if place := self._place:
            try:
                return self._read(place, offset, length)
            except (NotFound, PermissionDenied, HostFailed):
                self._place = ""
        return self._read(f"/blobs/{self._digest}", offset, length)

    def close(self) -> None:
        """There is nothing to release: connections are the client's."""

    def _read(self, place: str, offset: int, length: int) -> Buffer:
        if not length:
            return b""
        headers = {"Range": f"bytes={offset}-{offset + length - 1}"}
        with self._client.answer("GET", place, headers=headers) as response:
            self._check(response, offset, length)
            if self._client.is_elsewhere(response):
                self._place = str(response.url)
            buffer, received = uninitialised(length), 0
            with memoryview(buffer) as view:
                for piece in response.iter_raw():
                    end = received + len(piece)
                    if end > length:
                        raise HostFailed(f"{self._digest}: {response.url.host} answered more than was asked for")
                    view[received:end] = piece
                    received = end
            if received != length:
                raise HostFailed(f"{self._digest}: {response.url.host} answered {received} bytes of {length}")
            return buffer

    def _check(self, response: httpx.Response, offset: int, length: int) -> None:
        """Raise unless the body will be these bytes."""
        if response.status_code != 206:
            if offset == 0 and response.headers.get("content-length") == str(length):
                return
            raise Unsupported(
                f"{response.url.host} answered all of {self._digest} where a part was asked for",
                hint="a registry must serve ranges of blobs",
            )
        match = _RANGE.fullmatch(response.headers.get("content-range", ""))
        if match is None or (int(match[1]), int(match[2])) != (offset, offset + length - 1):
            raise HostFailed(f"{self._digest}: {response.url.host} answered another range than was asked for")
