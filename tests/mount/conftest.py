from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.mounted import Mounts


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[Mounts]:
    """Makes real mounts; checks afterwards that nothing is left and that no unexpected warning was logged."""
    made = Mounts(tmp_path)
    try:
        yield made
    finally:
        made.close()
