"""A store that was written to, what crashes left in it, and a collection: what it is to find and to leave alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stripefs.gc.collect import Collected, Collection
from stripefs.gc.rules import GcVerdict
from stripefs.store.base import Store
from stripefs.store.striped import StripedStore
from tests.support.leftovers import DAY, Place, version

OLD = 2 * DAY


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.close()


def collect(place: Place, store: Store | None = None, **options: object) -> Collected:
    inner = store or place.store
    return Collection(inner, StripedStore(inner), **options).run()


def removed(found: Collected) -> set[str]:
    return {item.path.decode().removeprefix("/") for item in found.items}


def kept(found: Collected) -> dict[GcVerdict, int]:
    return {verdict: count for verdict, (count, _) in found.kept.items()}


def crashes(place: Place, seconds: float) -> set[str]:
    """One of each kind of rubbish, so old; what gc should name."""
    place.hidden("d", "model", f"{version(1)}-0", seconds)
    place.hidden("d", "model", f"{version(1)}-draft", seconds)
    place.lock("d", "model", [version(1)], seconds)
    place.record("d", "model", place.concat_record("d", "model", version(2), [4]), seconds)
    place.hidden("d", "model", f"{version(6)}-record", seconds, b"no record")
    place.hidden("d/deep/er", "x" * 240, f"{version(3)}-17", seconds)
    place.file(f"d/..model.stripefs-lock.{version(4)}.tmp", b"", seconds)
    place.parts(version(5), b"y" * 10_000, 2, seconds)
    return {
        f"d/.model.stripefs-{version(1)}-0",
        f"d/.model.stripefs-{version(1)}-draft",
        f"d/.model.stripefs-{version(2)}-record",
        f"d/.model.stripefs-{version(6)}-record",
        "d/.model.stripefs-lock",
        next(f"d/deep/er/{path.name}" for path in (place.root / "d/deep/er").iterdir()),
        f"d/..model.stripefs-lock.{version(4)}.tmp",
        f".stripefs/{version(5)}",
    }


def files(place: Place, seconds: float) -> set[str]:
    """Files in use, so old; and names that are somebody else's."""
    place.striped("d/striped", version(100), seconds=seconds)
    place.striped("other/deeper/striped", version(101), seconds=seconds)
    place.file("d/model", b"old", seconds)
    place.file("d/.model.swp", b"an editor's", seconds)
    place.file(f"d/.rsync.{version(4)}.tmp", b"a program's own", seconds)
    place.file(f"d/.model.stripefs-{version(1)}-future", b"a newer program's", seconds)
    place.file("d/..stripefs-layout", b"the layout of what is made in a directory", seconds)
    place.file("other/.stripefs/notes", b"the pool of another mount", seconds)
    place.file(f"other/.stripefs/{version(5)}/0", b"the pool of another mount", seconds)
    place.file(".stripefs/notes/x", b"not a version", seconds)
    place.file(f".stripefs/{version(7)}", b"not a folder", seconds)
    return place.everything()
