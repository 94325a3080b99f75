"""Whether what was installed is what was asked for, to the version: what others need besides shows only then."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from imagefs.deps.inventory import Inventory
from imagefs.deps.requirements import Pins, unpinned_installed

__all__ = ["Pinned", "unpinned"]

_TOLD = 3
_URL = ".dist-info/direct_url.json"


class Pinned(NamedTuple):
    """`Pins` in values that can be JSON."""

    exact: Mapping[str, Sequence[str]]
    fixed: Sequence[str]
    nameless: int

    @classmethod
    def of(cls, pins: Pins) -> Pinned:
        exact = {name: sorted(specifiers) for name, specifiers in pins.exact.items()}
        return cls(exact, sorted(pins.fixed), pins.nameless)


def unpinned(pinned: Pinned, distributions: Iterable[str], inventory: Inventory) -> str:
    """A line about distributions, given as `NAME VERSION`, that nothing had pinned; "" where there is none."""
    installed = {name: version for name, _, version in (one.partition(" ") for one in distributions)}
    found = unpinned_installed(Pins(*pinned), installed, list(_sourced(inventory)))
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
