"""A lock of uv, of a project beside which a directory `own` lies."""

from __future__ import annotations

__all__ = ["UV_LOCK"]

UV_LOCK = """\
version = 1
[[package]]
name = "app"
version = "1"
source = { editable = "." }
[[package]]
name = "all"
source = { virtual = "all" }
[[package]]
name = "six"
version = "1.16"
source = { registry = "https://x/simple" }
[[package]]
name = "own"
source = { directory = "../own" }
"""
