"""Errors of a tree that can be written, and those it shares with everything that writes."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from stripefs.errors import Busy, PermissionDenied, StoreError
from stripefs.write.errors import Invalid, NotPermitted

__all__ = ["Invalid", "Lost", "NoAttribute", "NoVersion", "NotPermitted", "Unseen", "denial_as_eperm"]


class NoAttribute(StoreError):
    errno = errno.ENODATA


class NoVersion(Busy):
    """A file that is read before its writer has published it for the first time."""

    logged = True


class Lost(StoreError):
    """A file that was open for writing in a worker that is dead: its unpublished bytes are gone."""


class Unseen(StoreError):
    """A file that may be incomplete, as nobody here can tell whether its writer closed it or was killed. EIO."""


@contextlib.contextmanager
def denial_as_eperm() -> Iterator[None]:
    """Around a change that only the owner of a file may make, or only an administrator."""
    try:
        yield
    except PermissionDenied as error:
        raise NotPermitted(error.message, hint=error.hint) from error
