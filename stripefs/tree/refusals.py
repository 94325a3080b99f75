"""Errors that only a tree raises which can be written."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from stripefs.errors import PermissionDenied, StoreError

__all__ = ["Invalid", "Lost", "NameTooLong", "NoAttribute", "NotPermitted", "allowed"]


class NotPermitted(StoreError):
    """What no caller may do on this mount, whoever they are."""

    errno = errno.EPERM


class Invalid(StoreError):
    """What makes no sense, such as a directory moved below itself."""

    errno = errno.EINVAL


class NameTooLong(StoreError):
    errno = errno.ENAMETOOLONG


class NoAttribute(StoreError):
    errno = errno.ENODATA


class Lost(StoreError):
    """A file that was open for writing in a worker that is dead: what it had not published is gone."""


@contextlib.contextmanager
def allowed() -> Iterator[None]:
    """Around a change that only the owner of a file may make, or only an administrator."""
    try:
        yield
    except PermissionDenied as error:
        raise NotPermitted(error.message, hint=error.hint) from error
