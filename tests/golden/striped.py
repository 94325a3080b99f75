"""The golden files of striped files (docs/format-striped.md): a manifest, a part, and a manifest with its list outside.

`python -m tests.golden.striped` writes them anew, which is right only together with a new version number of the format,
whose old documents are still read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from stripefs.format.manifest import Manifest, Part, PartTable, Segment, digest_of, table_length

__all__ = ["DATA", "DOCUMENTS", "FOLDER", "MANIFEST", "MANY", "UNIT"]

FOLDER = Path(__file__).parent

UNIT = 8192

DATA = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(1000))
"""The bytes of the striped file: 32,000 of them, three units and a short one."""


def part_of(data: bytes) -> bytes:
    """A part as it lies in the pool."""
    table = PartTable(UNIT)
    table.add(data)
    return data + table.finish()


UNITS = [DATA[at : at + UNIT] for at in range(0, 20_000, UNIT)]
FIRST = [part_of(UNITS[0][:UNIT] + DATA[2 * UNIT : 20_000]), part_of(UNITS[1])]
"""Segment 1: 20,000 bytes over two parts, units 0 and 2 (3616 bytes) in the first."""

SECOND = [part_of(DATA[20_000:28_192]), part_of(DATA[28_192:])]
"""Segment 2: 12,000 bytes that another writer appended."""


def named(version: str, parts: list[bytes]) -> tuple[Part, ...]:
    return tuple(
        Part(version, number, len(part), digest_of(part[-8 * -(-len(part) // (UNIT + 8)) :]))
        for number, part in enumerate(parts)
    )


MANIFEST = Manifest(
    version="fedcba9876543210",
    generation=2,
    unit=UNIT,
    pool=b"/checkpoints/.stripefs",
    segments=(Segment(20_000, named("0123456789abcdef", FIRST)), Segment(12_000, named("fedcba9876543210", SECOND))),
)

MANY = Manifest(
    version="00000000000000ff",
    generation=0,
    unit=4096,
    pool=b"/.stripefs",
    segments=tuple(
        Segment(4096, (Part("00000000000000ff", number, 4096 + table_length(4096, 4096), digest_of(b"%d" % number)),))
        for number in range(1150)
    ),
)


def outside() -> tuple[bytes, bytes]:
    """(path, bytes) of the list that is not in the manifest."""
    found = MANY.parts_list()
    assert found is not None
    return found


DOCUMENTS: dict[str, Callable[[], bytes]] = {
    "striped.manifest": MANIFEST.to_bytes,
    "striped.part": lambda: FIRST[0],
    "striped.outside": MANY.to_bytes,
    "striped.list": lambda: outside()[1],
}


if __name__ == "__main__":
    for name, made in DOCUMENTS.items():
        (FOLDER / name).write_bytes(made())
