"""docs/cli.md, docs/config.md and docs/json.md agree with `imagefs`."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from imagefs import errors as own
from imagefs.build import image, optimize
from imagefs.build.pipeline import Built
from imagefs.build.transfer import Copied
from imagefs.config import resolve
from imagefs.housekeeping.gc import GcResult
from imagefs.housekeeping.listing import ImageRow
from imagefs.housekeeping.verify import Damage, VerifyResult
from stripefs import errors
from stripefs.cli.output import INTERRUPTED
from tests.support.checkout import CHECKOUT

DOCS = CHECKOUT / "docs"
CODES = (DOCS / "cli.md").read_text().split("\n### Exit codes of imagefs\n")[1]
CONFIG = (DOCS / "config.md").read_text().split("\n## imagefs\n")[1]
JSON = (DOCS / "json.md").read_text().split("\n## JSON of imagefs\n")[1]


def test_the_example_file_is_accepted(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", CONFIG, re.DOTALL)
    file = tmp_path / "imagefs.toml"
    file.write_text(example)
    settings = resolve({}, config=str(file), environ={})
    assert (settings.daemon.cache_size, settings.daemon.background_rate, settings.tmp) == (
        200 << 30,
        50_000_000,
        "/var/tmp",
    )


def test_the_exit_codes() -> None:
    found = [each for module in (errors, own) for each in vars(module).values() if isinstance(each, type)]
    codes = {each.exit_code for each in found if issubclass(each, errors.StripefsError)}
    rows = re.findall(r"^\| (\d+) \|", CODES, re.MULTILINE)
    assert {int(code) for code in rows} == {0, 1, INTERRUPTED} | codes


@pytest.mark.parametrize(
    ("name", "kinds", "more"),
    [
        ("`build`", [Built], {"store", "tag", "seconds"}),
        ("`built`", [image.BuildReport], set()),
        ("`hot`, `optimize`", [optimize.OptimizeReport], {"optimize", "store", "tag", "replication"}),
        ("`push`, `pull`", [Copied], {"source", "store", "seconds"}),
        ("`ls`", [ImageRow], set()),
        ("`verify`", [VerifyResult, Damage], {"removed"}),
        ("`gc`", [GcResult], set()),
    ],
)
def test_the_keys_of_json(name: str, kinds: list[Any], more: set[str]) -> None:
    (line,) = [line for line in JSON.splitlines() if line.startswith(f"| {name} |")]
    assert (
        set(re.findall(r"`(\w+)`", line.split(" | ")[1])) == {one.name for kind in kinds for one in fields(kind)} | more
    )
