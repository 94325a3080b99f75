from __future__ import annotations

from pathlib import Path

import pytest

from stripefs.testing.throttled import ThrottledStore
from tests.support.uploads import spread


@pytest.fixture
def store(tmp_path: Path) -> ThrottledStore:
    return spread(tmp_path)
