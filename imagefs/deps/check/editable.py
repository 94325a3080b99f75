"""Distributions whose modules stay where their source is."""

from __future__ import annotations

import json
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from imagefs.deps.check.finding import Finding
from imagefs.deps.check.sites import Distribution
from imagefs.deps.inventory import Inventory

__all__ = ["check_editable", "editable_source"]


def editable_source(direct_url: bytes) -> str:
    """The directory of an editable install, from its direct_url.json; "" for any other. Raises ValueError."""
    told = json.loads(direct_url)
    if not isinstance(told, dict) or not isinstance(told.get("dir_info"), dict) or not told["dir_info"].get("editable"):
        return ""
    return unquote(urlsplit(str(told.get("url"))).path)


def check_editable(inventory: Inventory, distributions: Iterable[Distribution], *, checked: bool) -> list[Finding]:
    """One finding for each editable install, but with `checked` bytecode, which follows what becomes of the source."""
    found = []
    for one in distributions:
        name = f"{one.folder}/direct_url.json"
        if checked or name not in inventory.entries or not inventory.entries[name].is_file:
            continue
        try:
            with open(inventory.path(name), "rb") as file:
                source = editable_source(file.read())
        except (OSError, ValueError, RecursionError):
            found.append(Finding("record", name, "cannot be understood"))
            continue
        if source:
            found.append(Finding("editable", one.name, f"its modules are in {source}"))
    return found
