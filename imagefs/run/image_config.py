"""What an image says about containers of it. Pure."""

from __future__ import annotations

import posixpath
import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from imagefs.errors import RunError

__all__ = ["ImageConfig", "parse_signal"]


class ImageConfig(NamedTuple):
    """What an image says about containers of it, in the `config` of its OCI image config."""

    env: Sequence[str] = ()
    entrypoint: Sequence[str] = ()
    cmd: Sequence[str] = ()
    workdir: str = ""
    user: str = ""
    stop_signal: str = ""
    volumes: Sequence[str] = ()

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> ImageConfig:
        """Of the whole image config; {} is an image that says nothing. Raises RunError."""
        config = document.get("config") or {}
        if not isinstance(config, dict):
            raise RunError("the image's config is no object")
        volumes = config.get("Volumes") or {}
        if not isinstance(volumes, dict):
            raise RunError("the image's Volumes are no object")
        return cls(
            _texts(config, "Env"),
            _texts(config, "Entrypoint"),
            _texts(config, "Cmd"),
            _text(config, "WorkingDir"),
            _text(config, "User"),
            _text(config, "StopSignal"),
            sorted({posixpath.normpath("/" + str(path).lstrip("/")) for path in volumes} - {"/"}),
        )


def parse_signal(text: str) -> int:
    """SIGTERM, TERM, 15 or SIGRTMIN+3 as a number. Raises RunError."""
    if text.isascii() and text.isdigit():
        number = int(text)
    elif match := re.fullmatch(r"(?:SIG)?(RTMIN|RTMAX)([+-]\d{1,2})?", text):
        number = getattr(signal, f"SIG{match[1]}") + int(match[2] or 0)
    else:
        number = signal.Signals.__members__.get(f"SIG{text.removeprefix('SIG')}", 0)
    if number not in signal.valid_signals():
        raise RunError(f"{text!r} is no signal")
    return int(number)


def _texts(config: Mapping[str, Any], name: str) -> Sequence[str]:
    value = config.get(name) or []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise RunError(f"the image's {name} is no list of texts")
    return value


def _text(config: Mapping[str, Any], name: str) -> str:
    value = config.get(name) or ""
    if not isinstance(value, str):
        raise RunError(f"the image's {name} is no text")
    return value
