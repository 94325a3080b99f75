"""The key of a version in the cache: blocks of a file that changed have another key, so they are not found. Pure.

A key is a BLAKE2b of where the store is and of the version's identity there. Where ids name files of the whole
service (HDFS inodes, local device:inode) the path is left out, so that a renamed file keeps what is cached of it and
mounts of different directories share. Ids of web servers and buckets may be the same for two paths (some are made of
time and length alone), so there the URL of the file is part of the key.
"""

from __future__ import annotations

import hashlib
import re

from stripefs.cache.segment_format import KEY
from stripefs.format.manifest import STRIPED_ID
from stripefs.store.base import Identity
from stripefs.units import shown

__all__ = ["SETTLED", "key_of", "location_of"]

_WHOLE_SERVICE = frozenset(("file", "hdfs"))
"""Schemes whose file ids are unique for all that their authority names."""

_URL = re.compile(r"(?P<layers>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?]*)(?P<rest>.*)", re.DOTALL)

SETTLED = 2_000_000_000
"""Nanoseconds for which a local file must have been left alone before it is cached, unless it is a striped one: two
writes within one tick of a file's time stamps look like one version, which must not be remembered."""


def key_of(url: str, path: bytes, identity: Identity, now_ns: int, *, trust_mtime: bool = False) -> bytes | None:
    """The key of the file at `path` of the store at `url` (without secrets), None where it cannot be distinguished from
    others.

    now_ns: nanoseconds since 1970. trust_mtime: length and time make a version where the store has no ids.
    """
    match = _URL.fullmatch(url if "://" in url else f"file://{url}")
    if match is None or not (identity.file_id or (trust_mtime and identity.mtime_ns)):
        return None
    layers = match["layers"].lower()
    authority = match["authority"].rpartition("@")[2].lower()
    scheme = layers.rpartition("+")[2]
    unsettled = scheme == "file" and abs(now_ns - identity.mtime_ns) < SETTLED
    if unsettled and not STRIPED_ID.search(identity.file_id):
        return None
    where: tuple[object, ...] = (layers, authority)
    if not identity.file_id or scheme not in _WHOLE_SERVICE:
        where += (match["rest"], path)
    parts = (*where, identity.length, identity.mtime_ns, identity.file_id)
    return hashlib.blake2b(repr(parts).encode("utf-8", "surrogateescape"), digest_size=KEY).digest()


def location_of(url: str, path: bytes) -> tuple[str, str]:
    """(service, absolute path there) of the file at `path` of the store at `url`, for people."""
    match = _URL.fullmatch(url if "://" in url else f"file://{url}")
    if match is None:
        return url, shown(path)
    root = match["rest"].partition("?")[0].rstrip("/")
    return f"{match['layers']}://{match['authority'].rpartition('@')[2]}", f"{root}{shown(path)}"
