"""Material of the tests of containers."""

from __future__ import annotations

import pytest

both = pytest.mark.parametrize("runtime", ["crun", "runc"])

TRAPS = "trap 'exit 42' TERM; trap 'exit 43' INT; trap 'exit 44' USR1; echo ready; while :; do sleep 0.05; done"
"""A script that says ready and ends with a status of its own for each signal."""
