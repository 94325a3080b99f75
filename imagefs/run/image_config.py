"""The config of an image, as far as containers of it follow from it, and the user that they run as. Pure.

The user is `User` of the config, or --user, resolved by the image's own passwd and group, as Docker does it: USER and
GROUP are names or numbers; a number need not be listed. Without GROUP the group is that of the passwd entry, and the
user is in every group that lists his name; with GROUP he is in that group alone.
"""

from __future__ import annotations

import posixpath
import re
import signal
from collections.abc import Iterator, Mapping, Sequence

from imagefs.errors import RunError
from stripefs.records import NamedTuple

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from typing import Any

__all__ = ["ImageConfig", "User", "parse_signal", "resolve_user"]


class ImageConfig(NamedTuple):
    """Settings of an image for containers of it, in the `config` of its OCI image config."""

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


_LARGEST = 2**32 - 2  # one more means "unchanged" to chown(2)


class User(NamedTuple):
    uid: int
    gid: int
    groups: Sequence[int]
    home: str


def resolve_user(user: str, passwd: bytes, group: bytes) -> User:
    """`user` is USER, USER:GROUP or "", which is uid 0. Raises RunError for a name that is not listed."""
    name, colon, group_name = user.partition(":")
    name = name or "0"
    entry = next((fields for fields in _entries(passwd, 6) if name in (fields[0], fields[2])), None)
    uid = _number(entry[2]) if entry else _number(name)
    if uid is None:
        raise RunError(f"the image has no user {name!r}", hint="its /etc/passwd lists none; give a number")
    gid = _number(entry[3]) if entry else 0
    groups: list[int] = []
    if colon and group_name:
        listed = next((fields for fields in _entries(group, 3) if group_name in (fields[0], fields[2])), None)
        gid = _number(listed[2]) if listed else _number(group_name)
        if gid is None:
            raise RunError(f"the image has no group {group_name!r}", hint="its /etc/group lists none; give a number")
    elif entry:
        found = [_number(fields[2]) for fields in _entries(group, 4) if entry[0] in fields[3].split(",")]
        groups = sorted({number for number in found if number is not None})
    return User(uid, gid or 0, groups, (entry[5] if entry else "") or "/")


def _entries(table: bytes, fields: int) -> Iterator[list[str]]:
    """The lines that have so many fields and a number in the third; others say nothing."""
    for line in table.decode("utf-8", "replace").split("\n"):
        entry = line.strip().split(":")
        if len(entry) >= fields and entry[0].strip("#+-") and _number(entry[2]) is not None:
            yield entry


def _number(text: str) -> int | None:
    if not (text.isascii() and text.isdigit()) or len(text) > 10:
        return None
    return int(text) if int(text) <= _LARGEST else None
