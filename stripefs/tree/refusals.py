"""Errors that only a tree raises which can be written."""

from __future__ import annotations

import errno

from stripefs.errors import StoreError

__all__ = ["Invalid", "Lost", "NameTooLong", "NoAttribute", "NotPermitted"]


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
