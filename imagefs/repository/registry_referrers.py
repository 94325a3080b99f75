"""Which images of ours were built from a container image, as its registry tells it.

Registries of the OCI distribution specification 1.1 know the referrers of a manifest. Others (Debian's docker-registry
among them) have the fallback tag `sha256-HEX`, an index whose lines clients enter. Entering one takes three requests
and may lose what another enters at the same moment, so it is looked for afterwards, and only images are entered. The
fallback tag also has the images whose container image lies in another repository, whatever the registry knows.

Lookups for images that are pulled (`brief`) have to be cheap where nothing is found: one request to a registry that
knows referrers, one to any other once this process has found out that it is such a one.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import quote

from imagefs.errors import DamagedObject
from imagefs.repository import artifact as form
from imagefs.repository.artifact import CREATED, IMAGE, IMAGE_DIGEST, OCI_INDEX, Descriptor
from imagefs.repository.registry_manifests import Manifests, digest_of
from stripefs.errors import NotFound, ServiceDown, Unsupported

__all__ = ["Referrers"]

_TRIES = 6
_PAUSE = 0.2  # seconds at most between two tries
_HEX = re.compile(r"[0-9a-f]{64}")

_BELIEVED = 600.0
"""Seconds for which brief lookups believe that a registry does not know referrers: it may have meant the repository."""

_lacking: dict[str, float] = {}  # until when that is believed, by host


class Referrers:
    """Those in the repository of `manifests`. Calls raise StoreErrors."""

    def __init__(self, manifests: Manifests, *, brief: bool = False) -> None:
        self._manifests = manifests
        self._brief = brief
        believed = _lacking.get(manifests.client.host, 0.0) if brief else 0.0
        self._asks = time.monotonic() >= believed  # until the registry turns out not to know referrers

    def images(self, source: str) -> Iterator[tuple[str, str]]:
        """Digest and manifest (sha256:HEX) of the images that were built from an OCI manifest, the newest first."""
        for one in sorted(self._all(source), key=lambda one: one.annotations.get(CREATED, ""), reverse=True):
            name = one.annotations.get(IMAGE_DIGEST, "")
            if one.artifact_type in ("", IMAGE) and _HEX.fullmatch(name):
                yield name, one.digest

    def subject(self, source: str) -> Descriptor | None:
        """The OCI manifest with that digest, None where it is not in this repository."""
        try:
            data, kind = self._manifests.load(source)
        except NotFound:
            return None
        return Descriptor(kind or form.MANIFEST, source, len(data))

    def enter(self, source: str, entry: Descriptor, name: str) -> None:
        """Let the fallback tag say that the image `name` with the manifest `entry` was built from the OCI manifest."""
        self._change(source, lambda found: [*_without(found, name), entry])

    def leave(self, source: str, name: str) -> None:
        """Let nothing say any more that this image was built from the OCI manifest."""
        for one in self._all(source):
            if one.annotations.get(IMAGE_DIGEST) == name:
                with contextlib.suppress(NotFound):
                    self._manifests.delete(f"/manifests/{one.digest}")
        self._change(source, lambda found: _without(found, name))

    def _all(self, source: str) -> list[Descriptor]:
        found: list[Descriptor] = []
        if self._asks:
            try:
                for data in self._manifests.pages(f"/referrers/{source}?artifactType={quote(IMAGE)}", OCI_INDEX):
                    found += form.descriptors(data, f"the referrers of {source}")
            except (NotFound, Unsupported, DamagedObject):
                self._asks = False
                if self._brief:
                    _lacking[self._manifests.client.host] = time.monotonic() + _BELIEVED
        found = [one for one in found if IMAGE_DIGEST in one.annotations]
        return found if found or (self._brief and self._asks) else self._entered(source)

    def _entered(self, source: str) -> list[Descriptor]:
        """The lines of the fallback tag."""
        try:
            data, _ = self._manifests.load(source.replace(":", "-"), OCI_INDEX)
        except NotFound:
            return []
        return form.descriptors(data, f"the referrers of {source}")

    def _change(self, source: str, change: Callable[[Sequence[Descriptor]], list[Descriptor]]) -> None:
        """Change the fallback tag until it says what was wanted: others may change it too."""
        for turn in range(_TRIES):
            before = self._entered(source)
            wanted = change(before)
            if {one.digest for one in wanted} == {one.digest for one in before}:
                return
            time.sleep(random.uniform(0, _PAUSE) if turn else 0)  # noqa: S311  no secret
            if wanted:
                self._manifests.put_bytes(source.replace(":", "-"), form.index(wanted), OCI_INDEX)
                continue
            with contextlib.suppress(NotFound):  # by its digest, so that what another has put meanwhile stays
                there = self._manifests.load(source.replace(":", "-"), OCI_INDEX)[0]
                if form.descriptors(there, f"the referrers of {source}") == before:
                    self._manifests.delete(f"/manifests/{digest_of(there)}")
        raise ServiceDown(f"{self._manifests.url}: others change what was built from {source} all the time")


def _without(found: Sequence[Descriptor], name: str) -> list[Descriptor]:
    return [one for one in found if one.annotations.get(IMAGE_DIGEST) != name]
