"""Errors that only writing raises."""

from __future__ import annotations

import errno

from stripefs.errors import StoreError, Unsupported

__all__ = ["DraftLost", "Invalid", "LeaseEnded", "NotPermitted", "NotSequential"]


class NotSequential(Unsupported):
    """A write that does not continue the file where it ends. EOPNOTSUPP, unless it can be staged (`--staging`)."""


class DraftLost(StoreError):
    """An upload that cannot be published any more: its lock was lost, or it was abandoned."""

    errno = errno.EIO


class LeaseEnded(StoreError):
    """The lease of a lock has ended for its writer, who may still renew it while nobody has taken it over."""


class NotPermitted(StoreError):
    """An operation that is permitted to nobody."""

    errno = errno.EPERM


class Invalid(StoreError):
    """A request that makes no sense, such as a directory moved below itself."""

    errno = errno.EINVAL
