"""Formats of images, byte by byte: pure, no I/O but through files that the caller opened. See docs/format.md."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

from imagefs.errors import FormatError, UnknownVersion

__all__ = ["document", "first_line", "is_digest", "is_source"]

_HEX = re.compile(r"[0-9a-f]{64}")
_SOURCE = re.compile(r"sha256:[0-9a-f]{64}")


def is_digest(name: str) -> bool:
    """Tells whether this is how objects are named: SHA-256 in hexadecimal."""
    return _HEX.fullmatch(name) is not None


def is_source(name: str) -> bool:
    """Tells whether this names an OCI manifest, as the `source` of an image that was built from one does."""
    return _SOURCE.fullmatch(name) is not None


@contextlib.contextmanager
def document(data: bytes, kind: str, name: str, versions: tuple[int, ...] = (1,)) -> Iterator[dict[str, Any]]:
    """A JSON document of ours; what fails in the block means that it is damaged. Raises FormatError.

    kind: what `bootseer` in it says. name: of what it is, for people.
    """
    try:
        found = json.loads(data)
        if found["bootseer"] != kind:
            raise FormatError(f"this document is no {name}")
        if found["version"] not in versions:
            raise UnknownVersion(f"a {name} of version {found['version']!r}, which this program does not know")
        yield found
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise FormatError(f"the {name} is damaged: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The first line of what an error says, at most 200 characters: documents that are damaged are quoted in it."""
    return (str(error) or type(error).__name__).splitlines()[0][:200]
