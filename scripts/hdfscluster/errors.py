"""The exception that ends a command with one line and exit code 1."""

from __future__ import annotations

__all__ = ["ClusterError"]


class ClusterError(Exception):
    """`str()` is one line that says what happened and what to do."""
