"""The one user that hdfs-native's connections of a process belong to.

The library knows no user of a client: whenever it connects, and again after each lost connection, it takes the name
from the variable HADOOP_USER_NAME of the process (0.14.7; measured at a socket that took what it sent). So the name
must stand there as long as a client lives, a second user at the same time is refused, and the variable is taken away
with the last client. Where the library would take the right name anyway nothing is set, so that programs which are
started meanwhile inherit nothing. The name is not put into `os.environ`: programs that are given a copy of that do not
inherit it either.
"""

from __future__ import annotations

import os
import pwd
import threading
import weakref
from collections.abc import Callable

from stripefs.errors import ConfigError

__all__ = ["claim_user"]

NAME = "HADOOP_USER_NAME"

_lock = threading.Lock()
_user = ""
_clients = 0


def claim_user(user: str, client: object) -> Callable[[], object]:
    """All connections are of `user` from now on, until the result is called or `client` is gone.

    Raises ConfigError while clients of another user live in this process.
    """
    global _user, _clients
    with _lock:
        if _clients and user != _user:
            raise ConfigError(
                f"this process is connected to HDFS as {_user}, and cannot be {user} at the same time",
                hint="use a process for each user, or --hdfs-transport webhdfs",
            )
        if not _clients and user != _own():
            os.putenv(NAME, user)
        _user = user
        _clients += 1
    release = weakref.finalize(client, _release)
    release.atexit = False
    return release


def _release() -> None:
    global _clients
    with _lock:
        _clients -= 1
        if not _clients:
            before = os.environ.get(NAME)
            if before is None:
                os.unsetenv(NAME)
            else:
                os.putenv(NAME, before)


def _own() -> str:
    """The user that the library takes by itself."""
    try:
        return os.environ.get(NAME) or pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's uid without a passwd entry
        return ""
