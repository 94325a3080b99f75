"""Identity map: names of users and groups in the store, as numbers on this host.

A name that this host knows (passwd, group and whatever NSS adds) maps to its number, decimal text to that number,
anything else to the user and group that mounted. `uid` and `gid` >= 0 override all names.
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable, Iterable, Sequence

from stripefs.errors import NotPermitted
from stripefs.store.base import Status

__all__ = ["IdMap"]

_LARGEST = (1 << 32) - 2
"""2^32 - 1 means "unchanged" to chown and is no user."""


class IdMap:
    """The mapping of one mount. Answers are kept: a name changes its number only in the next worker."""

    def __init__(self, uid: int = -1, gid: int = -1) -> None:
        self._uid = uid
        self._gid = gid
        self._own_uid = os.getuid()
        self._own_gid = os.getgid()
        self._uids: dict[str, int] = {"": self._own_uid}
        self._gids: dict[str, int] = {"": self._own_gid}

    def learn(self, statuses: Iterable[Status]) -> None:
        """Look up the names in `statuses`. NSS may ask a network service, so call this in a thread."""
        for status in statuses:
            if self._uid < 0 and status.owner not in self._uids:
                self._uids[status.owner] = self._find_uid(status.owner)
            if self._gid < 0 and status.group not in self._gids:
                self._gids[status.group] = self._find_gid(status.group)

    def uid(self, name: str) -> int:
        """The number of a name that `learn` has seen; the mounting user's for others."""
        return self._uid if self._uid >= 0 else self._uids.get(name, self._own_uid)

    def gid(self, name: str) -> int:
        return self._gid if self._gid >= 0 else self._gids.get(name, self._own_gid)

    def owner(self, uid: int, now: str, like: str) -> str | None:
        """The name in the store of the user with this number here; None where `now` is that user's already.

        `like` is some owner in the store, which tells whether names are kept there or numbers. Raises NotPermitted
        where the mount shows one user as the owner of everything. Blocks as `learn` does.
        """
        if self.uid(now) == uid:
            return None
        if self._uid >= 0:
            raise NotPermitted("this mount shows one user as the owner of everything")
        return str(uid) if like.isdigit() else _name(pwd.getpwuid, uid)

    def group(self, gid: int, now: str, like: str) -> str | None:
        """The same for groups."""
        if self.gid(now) == gid:
            return None
        if self._gid >= 0:
            raise NotPermitted("this mount shows one group as that of everything")
        return str(gid) if like.isdigit() else _name(grp.getgrgid, gid)

    def _find_uid(self, name: str) -> int:
        try:
            return pwd.getpwnam(name).pw_uid
        except (KeyError, ValueError, UnicodeEncodeError):
            return _number(name, self._own_uid)

    def _find_gid(self, name: str) -> int:
        try:
            return grp.getgrnam(name).gr_gid
        except (KeyError, ValueError, UnicodeEncodeError):
            return _number(name, self._own_gid)


def _name(find: Callable[[int], Sequence[object]], number: int) -> str:
    try:
        return str(find(number)[0])
    except KeyError:
        return str(number)


def _number(text: str, default: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and int(text) <= _LARGEST else default
