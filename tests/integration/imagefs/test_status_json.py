"""docs/json.md names every key that `imagefs status --json` and `imagefs ready --json` print, and no other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import CHECKOUT
from tests.tools.imagefs_daemon import Service

pytestmark = [pytest.mark.mount, pytest.mark.root]

TEXT = (CHECKOUT / "docs/json.md").read_text().split("\n## JSON of imagefs\n")[1]


def first_column(table: str) -> set[str]:
    return {key for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)}


def cells(command: str) -> str:
    (line,) = re.findall(rf"^\| `{command}` \| (.*) \|$", TEXT, re.MULTILINE)
    return str(line)


def keys(value: object) -> Iterator[str]:
    """Those of the objects in `value`, at any depth."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield key
            yield from keys(inner)
    elif isinstance(value, list):
        for one in value:
            yield from keys(one)


def test_the_keys_of_status_and_ready(host: Service, image: tuple[Path, Path]) -> None:
    _, store = image
    where = host.mountpoint()
    host.ok("mount", f"{store}#t", str(where))
    try:
        before: dict[str, Any] = json.loads(host.ok("status", "--json"))
        ready: dict[str, Any] = json.loads(host.ok("ready", "--json", str(where)))
        after: dict[str, Any] = json.loads(host.ok("status", "--json"))
    finally:
        host.ok("umount", str(where))
    assert before["images"][0]["start"] == {}
    assert set(ready) == set(re.findall(r"`(\w+)`", cells("ready")))
    named = set(re.findall(r"`(\w+)`", TEXT))
    assert set(keys([before, ready, after])) <= named
    of_images, of_blocks = TEXT.split("\n`status` is one use of it")[1].split("\n`blocks` are figures")
    assert set(after["images"][0]) == first_column(of_images)
    assert set(after["blocks"]) == first_column(of_blocks)
