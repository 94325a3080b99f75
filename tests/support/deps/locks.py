"""Lock files: one of uv, of a project beside which a directory `own` lies, and one of PEP 751."""

from __future__ import annotations

__all__ = ["PYLOCK", "UV_LOCK"]

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
wheels = [{ url = "https://x/six.whl", hash = "sha256:ab" }]
[[package]]
name = "own"
source = { directory = "../own" }
"""

PYLOCK = """\
lock-version = "1.0"
created-by = "uv"
[[packages]]
name = "six"
version = "1.16"
wheels = [{ url = "https://x/six-1.16-py3-none-any.whl", hashes = { sha256 = "ab" } }]
"""
