from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.imagefs.conftest import nasty_tree
from tests.integration.mount.conftest import mounts
from tests.tools.command import Place

__all__ = ["mounts", "nasty_tree", "place"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """The installed command's mounts; checks afterwards that nothing is left and nothing unexpected was logged."""
    made = Place(tmp_path)
    yield made
    problems = made.close()
    assert not problems, "\n".join(problems)


@pytest.fixture
def transport() -> str:
    """For tests of which tests/extra has those of another one."""
    return "auto"
