"""Every error stripefs raises on purpose, with the errno and the exit code it becomes.

    StripefsError                 EIO        exit 1
    +-- ConfigError               EINVAL     exit 2    a flag, variable, file or URL that cannot be used
    +-- MountError                EIO        exit 32   mount(8)'s "mount failure"
    +-- StoreError                EIO        exit 3    what a store answered
        +-- NotFound              ENOENT     exit 3
        +-- PermissionDenied      EACCES     exit 3
        +-- NotADirectory         ENOTDIR    exit 3
        +-- IsADirectory          EISDIR     exit 3
        +-- StaleVersion          ESTALE     exit 3    the path no longer holds the version that was asked for
        +-- Exists                EEXIST     exit 3    there is something at the path already
        +-- NotEmpty              ENOTEMPTY  exit 3    a directory that must be empty is not
        +-- Busy                  EBUSY      exit 3    another writer holds the file
        +-- InvalidName           EINVAL     exit 3    the store takes no entry of this name
        +-- NameTooLong           ENAMETOOLONG exit 3  a name, or a path, that is longer than the store takes
        +-- QuotaExceeded         EDQUOT     exit 3    the directory's or the user's quota is used up
        +-- NoSpace               ENOSPC     exit 3    the store has no room left
        +-- Unsupported           EOPNOTSUPP exit 3    the store lacks a capability
        +-- Corrupt               EIO        exit 3    all replicas of a block fail their checksum
        +-- Transient             EIO        exit 3    may succeed when tried again
            +-- HostFailed        EIO        exit 3    one data host failed or stalled; another replica may serve
            +-- ServiceDown       EIO        exit 3    the metadata service (a NameNode, a bucket's endpoint) is away
        +-- NotPermitted          EPERM      exit 3    an operation that no user is permitted
        +-- Invalid               EINVAL     exit 3    a request without a sense: a directory moved below itself
        +-- NoAttribute           ENODATA    exit 3    an extended attribute that the file does not have
        +-- NoVersion             EBUSY      exit 3    a file that its writer has never published yet (a Busy)
        +-- NotSequential         EOPNOTSUPP exit 3    a write elsewhere than at the file's end (Unsupported)
        +-- DraftLost             EIO        exit 3    an upload that can no longer be published
        +-- LeaseEnded            EIO        exit 3    the lease of a lock ended before its writer renewed it
        +-- Lost, Unseen          EIO        exit 3    a file whose writer, or whose worker, died
        +-- Abandoned             EINTR      exit 3    the caller no longer wants the answer (never reaches a user)

A message is one line that says what happened; `hint` is one more that says what to do about it.
"""

from __future__ import annotations

import contextlib
import errno as _errno
from collections.abc import Iterator

__all__ = [
    "Abandoned",
    "Busy",
    "ConfigError",
    "Corrupt",
    "DraftLost",
    "Exists",
    "HostFailed",
    "Invalid",
    "InvalidName",
    "IsADirectory",
    "LeaseEnded",
    "Lost",
    "MountError",
    "NameTooLong",
    "NoAttribute",
    "NoSpace",
    "NoVersion",
    "NotADirectory",
    "NotEmpty",
    "NotFound",
    "NotPermitted",
    "NotSequential",
    "PermissionDenied",
    "QuotaExceeded",
    "ServiceDown",
    "StaleVersion",
    "StoreError",
    "StripefsError",
    "Transient",
    "Unseen",
    "Unsupported",
    "denial_as_eperm",
]


class StripefsError(Exception):
    """Base of all errors raised on purpose. `errno` is what a system call answers, `exit_code` what a command does.

    reported: another program has said it on our standard error, so a command is not to say it again.
    """

    errno: int = _errno.EIO
    exit_code: int = 1
    logged: bool = False
    """True if a mount logs it although programs are used to its errno."""
    reported: bool = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigError(StripefsError):
    errno = _errno.EINVAL
    exit_code = 2


class MountError(StripefsError):
    exit_code = 32


class StoreError(StripefsError):
    exit_code = 3


class NotFound(StoreError):
    errno = _errno.ENOENT


class PermissionDenied(StoreError):
    errno = _errno.EACCES


class NotADirectory(StoreError):
    errno = _errno.ENOTDIR


class IsADirectory(StoreError):
    errno = _errno.EISDIR


class StaleVersion(StoreError):
    errno = _errno.ESTALE


class Exists(StoreError):
    errno = _errno.EEXIST


class NotEmpty(StoreError):
    errno = _errno.ENOTEMPTY


class Busy(StoreError):
    """by: the file's writer, and since when, for people; "" where that is unknown."""

    errno = _errno.EBUSY

    def __init__(self, message: str, *, hint: str = "", by: str = "") -> None:
        super().__init__(message, hint=hint)
        self.by = by


class InvalidName(StoreError):
    errno = _errno.EINVAL
    logged = True


class NameTooLong(StoreError):
    errno = _errno.ENAMETOOLONG


class QuotaExceeded(StoreError):
    errno = _errno.EDQUOT


class NoSpace(StoreError):
    errno = _errno.ENOSPC


class Unsupported(StoreError):
    errno = _errno.EOPNOTSUPP


class Corrupt(StoreError):
    """No host that is known to have a block has intact bytes of it. Trying again does not help."""


class Transient(StoreError):
    pass


class HostFailed(Transient):
    """`host` is the data host as `Block.hosts` names it, or "" where the client chose it itself.

    `stalled` is true when the host stopped answering rather than refused.
    """

    def __init__(self, message: str, *, host: str = "", stalled: bool = False, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.host = host
        self.stalled = stalled


class ServiceDown(Transient):
    pass


class Abandoned(StoreError):
    errno = _errno.EINTR


class NotSequential(Unsupported):
    """A write that does not continue the file where it ends. EOPNOTSUPP, unless it can be staged (`--staging`)."""


class DraftLost(StoreError):
    """An upload that cannot be published any more: its lock was lost, or it was abandoned."""

    errno = _errno.EIO


class LeaseEnded(StoreError):
    """The lease of a lock has ended for its writer, who may still renew it while nobody has taken it over."""


class NotPermitted(StoreError):
    """An operation that no user is permitted."""

    errno = _errno.EPERM


class Invalid(StoreError):
    """A request that makes no sense, such as a directory moved below itself."""

    errno = _errno.EINVAL


class NoAttribute(StoreError):
    errno = _errno.ENODATA


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
