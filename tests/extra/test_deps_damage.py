"""The damage to dependency snapshots that tests/integration/deps leaves out."""

from __future__ import annotations

import os

import pytest

from tests.integration.deps.conftest import jobs, service, store, target, wheels
from tests.integration.deps.test_fail_open import Damage, test_what_is_damaged_is_installed_and_published_anew
from tests.support.images.faults import cut, flip

__all__ = [
    "jobs",
    "service",
    "store",
    "target",
    "test_what_is_damaged_is_installed_and_published_anew",
    "wheels",
]

pytestmark = [pytest.mark.mount, pytest.mark.root]

DAMAGE: list[Damage] = [
    *(("images", cut), ("images", os.unlink), ("metadata", flip), ("metadata", os.unlink)),
    *(("indexes", flip), ("indexes", cut), ("deps", cut), ("packs", cut)),
]


@pytest.fixture(params=DAMAGE, ids=lambda damage: f"{damage[0]}-{damage[1].__name__}")
def damage(request: pytest.FixtureRequest) -> Damage:
    found: Damage = request.param
    return found
