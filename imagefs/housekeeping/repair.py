"""Taking damaged objects away. A build that needs one and finds none stores it anew."""

from __future__ import annotations

from collections.abc import Iterable

from imagefs.housekeeping.verify import Damage
from imagefs.repository.images import Images
from stripefs.errors import NotFound

__all__ = ["remove_damaged"]


def remove_damaged(images: Images, damage: Iterable[Damage]) -> list[str]:
    """Remove the spoiled objects but manifests and tags; paths of those that were there. Raises StoreErrors."""
    removed = []
    for path in sorted({one.path for one in damage if one.spoiled}):
        if path.partition("/")[0] in ("images", "tags"):
            continue  # a build writes them again where they are damaged
        try:
            images.discard(f"/{path}".encode())
        except NotFound:
            continue  # somebody else removed it
        removed.append(path)
    return removed
