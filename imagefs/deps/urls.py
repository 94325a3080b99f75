"""URLs without what gives access to them. Pure."""

from __future__ import annotations

import re

__all__ = ["without_secrets"]

_USERINFO = re.compile(r"(?<=://)[^/?#\s\"'\\]*@")

_PARAMETER = re.compile(
    r"(?i)([?&](?=[^=&#\s]*=)[^=&#\s]*(?:auth|credential|key|passw|secret|signature|token)[^=&#\s]*=)[^&#\s\"'\\]*"
    r"|[?&][^=&#\s]*"
)
"""What has no secret is matched as well, as a whole: to try each of its characters takes the square of the time."""


def without_secrets(text: str) -> str:
    """`text` in which no URL has a user, a password, or the value of a parameter that is called like a secret."""
    return _PARAMETER.sub(lambda found: found[1] or found[0], _USERINFO.sub("", text))
