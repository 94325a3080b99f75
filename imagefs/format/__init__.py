"""Formats of images, byte by byte: pure, no I/O but through files that the caller opened. See docs/format.md."""

from __future__ import annotations

import re

__all__ = ["first_line", "is_digest", "is_source"]

_HEX = re.compile(r"[0-9a-f]{64}")
_SOURCE = re.compile(r"sha256:[0-9a-f]{64}")


def is_digest(name: str) -> bool:
    """Tells whether this is how objects are named: SHA-256 in hexadecimal."""
    return _HEX.fullmatch(name) is not None


def is_source(name: str) -> bool:
    """Tells whether this names an OCI manifest, as the `source` of an image that was built from one does."""
    return _SOURCE.fullmatch(name) is not None


def first_line(error: BaseException) -> str:
    """The first line of what an error says, at most 200 characters: documents that are damaged are quoted in it."""
    return (str(error) or type(error).__name__).splitlines()[0][:200]
