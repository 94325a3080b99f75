"""The announcement of an image by a command that has just begun.

A command takes some 15 ms until it has loaded what it needs to have an image attached, twice that from a cold disk, as
long as a store of the network takes to answer. So it first names the image to the daemon, which asks the store
meanwhile (`imagefs.daemon.lookups`). No process waits for an answer to that; where an announcement does not arrive,
the store is asked later. Loads nothing that a bare interpreter lacks but `_socket`.

An announcement says whether the store is reached by the defaults alone, with no flag, variable or file of settings that
may say otherwise. Then a daemon asks it that has never used it before.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["STORE_OPTIONS", "announce", "take"]

_RUNTIME = "/run/bootseer"
"""The runtime folder of root where nothing else is named (`imagefs.settings`)."""

STORE_OPTIONS = (
    "hdfs-transport", "hdfs-user", "hadoop-conf", "webhdfs-port", "use-datanode-hostname", "host-timeout", "mirror",
    "config",
)  # fmt: skip
"""Options by which a store may be reached in another way than by the defaults (`imagefs.config`)."""

_announced = ""


def announce(words: Iterable[str], environ: Mapping[str, str]) -> None:
    """Name the image in the arguments of `imagefs run` to the daemon, unless its store is local and answers at once."""
    global _announced
    image, flags = _image(words)
    runtime = environ.get("IMAGEFS_RUNTIME") or (_RUNTIME if os.geteuid() == 0 else "")
    if not image or not runtime:
        return
    import _socket

    identifier = os.urandom(16).hex()
    plain = "false" if _is_configured(flags, environ) else "true"
    told = f'{{"v": 1, "op": "announce", "id": "{identifier}", "image": "{image}", "plain": {plain}}}\n'
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        connection.connect(os.path.join(runtime, "imagefs.sock"))
        connection.send(told.encode())
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


def _image(words: Iterable[str]) -> tuple[str, list[str]]:
    """The first word that is a URL, and that JSON writes as it is, "" for none; and the words before it."""
    before: list[str] = []
    for word in words:
        if word == "--":
            break
        if "://" in word and not word.startswith("-"):
            return (word if word.isascii() and word.isprintable() and not {*word} & {'"', "\\"} else ""), before
        before.append(word)
    return "", before


def _is_configured(flags: Iterable[str], environ: Mapping[str, str]) -> bool:
    """Tells whether a flag, a variable or a file may change how the store is reached."""
    names = {word.partition("=")[0] for word in flags}
    home = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", ""), ".config")
    return (
        any(f"--{name}" in names or f"IMAGEFS_{name.upper().replace('-', '_')}" in environ for name in STORE_OPTIONS)
        or "--no-use-datanode-hostname" in names
        or os.path.exists("/etc/bootseer/imagefs.toml")
        or os.path.exists(os.path.join(home, "bootseer/imagefs.toml"))
    )
