"""An engine that ends with the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stripefs.api import engine


@pytest.fixture(autouse=True)
def _engine_ends() -> Iterator[None]:
    yield
    engine.stop()
