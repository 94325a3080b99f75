"""Whether what was installed is what was asked for, to the version: what others need besides shows only then."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from imagefs.deps.inventory import Inventory
from imagefs.deps.requirements import Pins, unpinned_installed

__all__ = ["unpinned"]

_TOLD = 3
_URL = ".dist-info/direct_url.json"


def unpinned(pins: Pins, distributions: Iterable[str], inventory: Inventory) -> str:
    """A line about distributions, given as `NAME VERSION`, that nothing had pinned; "" where there is none."""
    installed = {name: version for name, _, version in (one.partition(" ") for one in distributions)}
    found = unpinned_installed(pins, installed, list(_sourced(inventory)))
    if not found:
        return ""
    more = f" and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
    return (
        f"nothing says which version of these is to be installed: {', '.join(found[:_TOLD])}{more}"
        " (pin them, or --epoch X or --allow-unpinned)"
    )


def _sourced(inventory: Inventory) -> Iterator[str]:
    """Names of distributions that were made of files or directories of this host."""
    for path in inventory.entries:
        if path.endswith(_URL):
            try:
                with open(inventory.path(path), "rb") as file:
                    told = json.load(file)
            except (OSError, ValueError):
                continue  # which the check of its RECORD tells of
            if isinstance(told, dict) and str(told.get("url")).startswith("file:"):
                yield path.removesuffix(_URL).rpartition("/")[2].rpartition("-")[0]
