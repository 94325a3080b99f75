"""Answers that are too short."""

from __future__ import annotations

import pytest

from stripefs.errors import HostFailed
from stripefs.store.local import LocalStore
from stripefs.testing import ShortStore
from tests.integration.store.wrappers.material import outcomes


def test_a_short_answer_becomes_an_error(filled: LocalStore) -> None:
    handle = ShortStore(filled, rate=1).open(b"/file")
    with pytest.raises(HostFailed, match="where 100 were asked for"):
        handle.read(0, 100, host="")
    assert len(ShortStore(filled, rate=1, checked=False).open(b"/file").read(0, 100)) < 100
    assert "right" in {outcomes(ShortStore(filled, rate=0.5), [start])[start] for start in range(20)}
