"""Sizes, rates and durations as people write them: `8MiB`, `40MB/s`, `90s`; paths and rates as they read them."""

from __future__ import annotations

import re

from stripefs.errors import ConfigError

__all__ = ["Pace", "format_size", "parse_duration", "parse_rate", "parse_size", "shown"]

_SIZES: dict[str, int] = {
    "": 1,
    "b": 1,
    **{letter: 1 << (10 * power) for power, letter in enumerate("kmgtp", 1)},
    **{f"{letter}ib": 1 << (10 * power) for power, letter in enumerate("kmgtp", 1)},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgtp", 1)},
}
_DURATIONS = {"": 1.0, "s": 1.0, "ms": 0.001, "us": 1e-6, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Z]*)\s*"


def parse_size(text: str) -> int:
    """Bytes from `64M`, `64MiB` (binary) or `64MB` (decimal). Raises ConfigError."""
    number, unit = _split(text, _SIZES, "a size such as 8MiB, 512M or 1GB")
    return int(number * _SIZES[unit])


def parse_rate(text: str) -> float:
    """Bytes a second from `40MB/s`; a bare size means the same. Raises ConfigError."""
    return float(parse_size(text.strip().removesuffix("/s").removesuffix("ps")))


def parse_duration(text: str) -> float:
    """Seconds from `90`, `90s`, `250ms`, `2m`, `1h` or `1d`. Raises ConfigError."""
    number, unit = _split(text, _DURATIONS, "a duration such as 90s, 250ms or 2m")
    return number * _DURATIONS[unit]


def format_size(size: float) -> str:
    """`size` bytes with a binary unit and three digits at most: `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1000 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if size >= 100 or size == int(size) else f"{size:.1f} {unit}"


class Pace:
    """Growth rate of a count; `rate` is its gain a second."""

    def __init__(self) -> None:
        self.rate = 0.0
        self._last = (0.0, 0)

    def tick(self, now: float, count: int) -> None:
        """`count` is what it has come to at the time `now`, in seconds. To be called about every second."""
        then, before = self._last
        if then:
            # Half of the old value: a figure that a person can read while it follows the last few seconds.
            self.rate = (self.rate + (count - before) / (now - then)) / 2
            self.rate = 0.0 if self.rate < 1 else self.rate
        self._last = (now, count)


def shown(path: bytes) -> str:
    """A path or name for people and JSON, whatever its bytes are."""
    return path.decode("utf-8", "backslashreplace")


def _split(text: str, units: dict[str, float] | dict[str, int], wanted: str) -> tuple[float, str]:
    match = re.fullmatch(_NUMBER, text)
    if match is None or match[2].lower() not in units:
        raise ConfigError(f"{text!r} is not {wanted}")
    return float(match[1]), match[2].lower()
