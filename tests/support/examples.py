"""Numbers of examples of tests that need another one than the profile's."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["examples"]

FULL = 120
"""Examples of the default profile, which `tests/conftest.py` registers."""

_LEAST = 6


def examples(full: int, *, steps: int = 50) -> settings:
    """Settings with `full` examples in a full run, and with the same share of them that other tests have in a quick
    one. steps: of each example of a state machine.
    """
    share = settings().max_examples / FULL
    return settings(max_examples=max(_LEAST, round(full * share)), stateful_step_count=steps, deadline=None)
