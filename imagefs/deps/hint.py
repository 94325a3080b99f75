"""Hints: documents by which the start of a job in a container learns early what the last one like it came to.

Canonical JSON in a store, `hints/NAME`, beside the snapshots; NAME is the digest of the request (`name_of`):

    bootseer   "deps-hint", and `version` 1
    name       NAME
    asked      the digest of what the interpreter of the image was asked, the image's digest included
    told       what it printed
    lock       the name of the lock in the store, "" for none
    snapshot   the name of the snapshot
    digest     SHA-256 of the document without this

A hint is believed no further than to find a snapshot. A snapshot that is attached because of it is used only under the
key that the start makes itself. A key that is made of `told` names a snapshot only where a host that installed was told
the same by the interpreter itself; where it names none, the interpreter is asked before anything else is done. So a
hint that is wrong costs time. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from imagefs.deps.lock import without_secrets
from imagefs.deps.request import Request
from imagefs.errors import FormatError
from imagefs.format import is_digest
from imagefs.format.documents import canonical

__all__ = ["Hint", "name_of"]

_VERSION = 1


class Hint(NamedTuple):
    """The document, but for its name and what tells that it is whole."""

    asked: str
    told: str
    lock: str
    snapshot: str

    def to_json(self, name: str) -> bytes:
        """The document under this name."""
        document = {"bootseer": "deps-hint", "version": _VERSION, "name": name, **self._asdict()}
        return canonical({**document, "digest": _digest(document)})

    @classmethod
    def from_json(cls, data: bytes | str, name: str) -> Hint:
        """Raises FormatError for what is no document of this name and version."""
        try:
            document = json.loads(data)
            digest = document.pop("digest")
            head = document.pop("bootseer"), document.pop("version"), document.pop("name")
            found = cls(**document)
            whole = digest == _digest({"bootseer": head[0], "version": head[1], "name": head[2], **document})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise FormatError(f"the hint {name[:12]} is damaged") from error
        if not whole or head != ("deps-hint", _VERSION, name):
            raise FormatError(f"the hint {name[:12]} is damaged, of another version, or another one's")
        named = [found.asked, found.snapshot, *([] if found.lock == "" else [found.lock])]
        if not all(isinstance(one, str) and is_digest(one) for one in named) or not isinstance(found.told, str):
            raise FormatError(f"the hint {name[:12]} names or tells nothing")
        return found


def name_of(image: str, request: Request, files: Sequence[str], environ: Mapping[str, str], cpu_level: str) -> str:
    """The name of the hint for starts like this one.

    image: the tag or digest as the user has it. request: without what the image says. files: digests of requirements
    files. environ: variables that the user gives to the container; those of pip count, and those that the request
    names. cpu_level: of this host. All of it only tells jobs apart that would overwrite each other's hint.
    """
    counted = {
        name: without_secrets(value)
        for name, value in sorted(environ.items())
        if name.startswith("PIP_") or name in request.env
    }
    wanted = request._replace(command=(), folder="", base_image="")._asdict()
    return _digest({"image": image, "request": wanted, "files": list(files), "environ": counted, "level": cpu_level})


def _digest(value: Mapping[str, object]) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()
