"""The announcement of an image by a command that has just begun.

A command takes some 15 ms until it has loaded what it needs to have an image attached, as long as a store of the
network takes to answer. So it first names the image to the daemon, which asks the store meanwhile
(`imagefs.daemon.early_answers`). Nobody waits for an answer to that; where an announcement does not arrive, the store
is asked later. Loads nothing that a bare interpreter lacks but `_socket`.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["announce", "take"]

_RUNTIME = "/run/bootseer"
"""The runtime folder of root where nothing else is named (`imagefs.settings`)."""

_announced = ""


def announce(words: Iterable[str], environ: Mapping[str, str]) -> None:
    """Name the image in the arguments of `imagefs run` to the daemon, unless its store is local and answers at once."""
    global _announced
    image = _image(words)
    runtime = environ.get("IMAGEFS_RUNTIME") or (_RUNTIME if os.geteuid() == 0 else "")
    if not image or not runtime:
        return
    import _socket

    identifier = os.urandom(16).hex()
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        connection.connect(os.path.join(runtime, "imagefs.sock"))
        connection.send(f'{{"v": 1, "op": "announce", "id": "{identifier}", "image": "{image}"}}\n'.encode())
    except OSError:  # no daemon runs, or it has no time
        return
    finally:
        connection.close()
    _announced = identifier


def take() -> str:
    """The id of the attachment for which an image was announced, once; "" where none was."""
    global _announced
    found, _announced = _announced, ""
    return found


def _image(words: Iterable[str]) -> str:
    """The first word that is a URL, and that JSON writes as it is."""
    for word in words:
        if word == "--":
            break
        if "://" in word and not word.startswith("-"):
            return word if word.isascii() and word.isprintable() and not {*word} & {'"', "\\"} else ""
    return ""
