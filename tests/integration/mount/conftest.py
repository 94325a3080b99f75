import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.mounts import Mounts


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[Mounts]:
    """Makes real mounts; checks afterwards that nothing is left and that no unexpected warning was logged."""
    with contextlib.closing(Mounts(tmp_path)) as made:
        yield made
