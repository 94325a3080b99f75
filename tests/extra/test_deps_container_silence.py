"""Ways to take away standard error of a container's start that tests/integration/deps/container leaves out."""

from __future__ import annotations

import pytest

from tests.integration.deps.conftest import service
from tests.integration.deps.container.conftest import image, job, tree
from tests.integration.deps.container.test_trouble import test_nobody_to_tell

__all__ = ["image", "job", "service", "test_nobody_to_tell", "tree"]

pytestmark = [pytest.mark.mount, pytest.mark.root]


@pytest.fixture(params=["2>/dev/full", "2>&1 >/dev/null | :", "<&- 2>&-"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)
