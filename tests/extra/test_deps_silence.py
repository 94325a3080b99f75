"""Ways to take away the outputs of a start of `imagefs deps` that tests/integration/deps leaves out."""

from __future__ import annotations

import pytest

from tests.integration.deps.conftest import folder, jobs, service, target
from tests.integration.deps.test_fail_open import test_nobody_to_tell

__all__ = ["folder", "jobs", "service", "target", "test_nobody_to_tell"]

pytestmark = [pytest.mark.mount, pytest.mark.root]


@pytest.fixture(params=[("uv", "2>&-"), ("uv", ">&-"), ("pip", "<&- >&- 2>&-"), ("uv", "2>/dev/full")])
def silence(request: pytest.FixtureRequest) -> tuple[str, str]:
    found: tuple[str, str] = request.param
    return found
