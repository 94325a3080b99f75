"""Contents that name themselves: every 32 bytes say which version of which file they are of, and where in it they lie.

So a reader needs no copy to compare with, and bytes of another version, of another place or of nowhere are told apart.
"""

from __future__ import annotations

__all__ = ["CELL", "PAGE", "content", "difference", "versions_in"]

PAGE = 4096
CELL = 32
_NAME = 15


def content(version: str, offset: int, length: int) -> bytes:
    """Bytes [offset, offset + length) of the file whose version is named so (at most 15 ASCII characters)."""
    first = offset // PAGE
    pages = b"".join(_page(version, number) for number in range(first, -(-(offset + length) // PAGE)))
    start = offset - first * PAGE
    return pages[start : start + length]


def _page(version: str, number: int) -> bytes:
    name = version.encode("ascii")
    assert len(name) <= _NAME
    return (b"%-15s %15d\n" % (name, number)) * (PAGE // CELL)


def difference(data: bytes, version: str, offset: int) -> str:
    """The first difference of `data` from the bytes of `version` from `offset` on; "" for none."""
    wanted = content(version, offset, len(data))
    if data == wanted:
        return ""
    at = next(place for place, (is_, must) in enumerate(zip(data, wanted, strict=True)) if is_ != must)
    return f"byte {offset + at} of {version}: {data[at : at + CELL]!r} instead of {wanted[at : at + CELL]!r}"


def versions_in(data: bytes) -> set[str]:
    """The versions named in `data`, which starts at a multiple of 32 bytes of its file."""
    return {data[at : at + _NAME].decode("latin-1").rstrip() for at in range(0, len(data) - _NAME, CELL)}
