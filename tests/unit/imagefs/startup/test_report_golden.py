"""Reports on committed events are those of version 1 of the document, and of its text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.imagefs.startup.golden import FOLDER, SETS, made


def rounded(value: Any) -> Any:
    """Floats to a tenth of a millisecond: sums may be made in another order elsewhere."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", SETS)
def test_the_report_is_the_golden_one(name: str) -> None:
    report, text = made(name)
    document = json.loads((FOLDER / f"{name}.json").read_text())
    assert rounded(json.loads(json.dumps(report.to_json()))) == rounded(document)
    assert text == (FOLDER / f"{name}.txt").read_text()
    assert max(map(len, text.splitlines())) <= 100
