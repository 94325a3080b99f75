"""Extended attributes that tell what the store knows of a file: read by name, listed by no call.

user.stripefs.block_size   bytes, decimal; the unit in which the store spreads the file over hosts
user.stripefs.layout       of a directory, where it was set: the layout of files that are written in it and below
user.stripefs.locations    JSON: [{"offset": bytes, "length": bytes, "hosts": [names]}, …] block by block; where the
                           value would pass 64 KiB (the kernel's limit) the last item is {"more": blocks left out}
user.stripefs.replication  decimal
user.stripefs.source       the URL of the file
user.stripefs.version      "length:mtime_ns:file_id", equal for equal bytes
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote_from_bytes

from stripefs.store.base import Block, Status

__all__ = ["LOCATIONS", "NAMESPACE", "OF_FILES", "OF_OTHERS", "PREFIX", "locations", "value"]

NAMESPACE = b"user."
"""No other name is kept here: no access control lists, labels or capabilities."""

PREFIX = b"user.stripefs."
LOCATIONS = PREFIX + b"locations"
OF_FILES = tuple(PREFIX + name for name in (b"block_size", b"locations", b"replication", b"source", b"version"))
OF_OTHERS = (PREFIX + b"source",)

_LIMIT = 64 << 10
"""XATTR_SIZE_MAX of the kernel."""


def value(name: bytes, url: str, path: bytes, status: Status) -> bytes | None:
    """The value of any attribute but `LOCATIONS`; None where there is no such attribute."""
    match name.removeprefix(PREFIX):
        case b"block_size":
            return str(status.block_size).encode()
        case b"replication":
            return str(status.replication).encode()
        case b"source":
            base, question, parameters = url.partition("?")
            return (base.rstrip("/") + quote_from_bytes(path) + question + parameters).encode()
        case b"version":
            return f"{status.length}:{status.mtime_ns}:{status.file_id}".encode()
    return None


def locations(blocks: Sequence[Block]) -> bytes:
    """The value of `LOCATIONS`, at most 64 KiB."""
    items = [
        json.dumps({"offset": block.offset, "length": block.length, "hosts": block.hosts}, separators=(",", ":"))
        for block in blocks
    ]
    remaining = _LIMIT - len('[{"more":18446744073709551615}]')
    kept = 0
    for item in items:
        remaining -= len(item) + 1
        if remaining < 0:
            break
        kept += 1
    if kept < len(items):
        items[kept:] = [json.dumps({"more": len(items) - kept}, separators=(",", ":"))]
    return f"[{','.join(items)}]".encode()
