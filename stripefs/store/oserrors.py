"""Which StoreError an operating system's error number means, for clients whose libraries raise OSError."""

from __future__ import annotations

import errno

from stripefs.errors import (
    Busy,
    Exists,
    IsADirectory,
    NameTooLong,
    NoSpace,
    NotADirectory,
    NotEmpty,
    NotFound,
    PermissionDenied,
    QuotaExceeded,
    StaleVersion,
    StoreError,
    Transient,
    Unsupported,
)

__all__ = ["STORE_ERRORS"]

STORE_ERRORS: dict[int | None, type[StoreError]] = {
    errno.ENOENT: NotFound,
    errno.ENAMETOOLONG: NameTooLong,
    errno.EEXIST: Exists,
    errno.ENOTDIR: NotADirectory,
    errno.EISDIR: IsADirectory,
    errno.EACCES: PermissionDenied,
    errno.EPERM: PermissionDenied,
    errno.EROFS: PermissionDenied,
    errno.ENOTEMPTY: NotEmpty,
    errno.EBUSY: Busy,
    errno.EDQUOT: QuotaExceeded,
    errno.ENOSPC: NoSpace,
    errno.ESTALE: StaleVersion,
    errno.ELOOP: Unsupported,
    errno.EXDEV: Unsupported,
    errno.ENXIO: Unsupported,
    errno.EMFILE: Transient,
    errno.ENFILE: Transient,
    errno.ENOMEM: Transient,
    errno.ETIMEDOUT: Transient,
}
