"""How the last try to publish a snapshot ended on this host, for whoever asks next: CACHE/deps/outcomes/NAME.json, and
what the program that tried had to say, NAME.log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from imagefs.deps import notes

__all__ = ["Outcome", "keep", "last", "log_of"]


class Outcome(NamedTuple):
    """published: whether there is a snapshot now, by whomever. lines: why not, or what was noticed. at: seconds since
    1970. stored: bytes that came into the store. broken: whether trouble kept it from that, which may be over later."""

    published: bool
    lines: tuple[str, ...]
    at: float
    image: str = ""
    stored: int = 0
    broken: bool = False


def keep(cache: str, name: str, outcome: Outcome) -> None:
    """Raises OSError."""
    notes.keep(_path(cache, name), json.dumps(outcome._asdict()))


def last(cache: str, name: str) -> Outcome | None:
    """None where nobody tried, or nobody knows."""
    try:
        told = json.loads(_path(cache, name).read_text())
        return Outcome(**{**told, "lines": tuple(map(str, told["lines"]))})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def log_of(cache: str, name: str) -> Path:
    """Where what publishes writes what it has to say. Raises OSError."""
    path = _path(cache, name).with_suffix(".log")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _path(cache: str, name: str) -> Path:
    return Path(cache, "deps/outcomes", f"{name}.json")
