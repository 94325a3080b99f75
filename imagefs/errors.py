"""Errors of imagefs. Each has a message for people, and where something helps, a hint that says what to do."""

from __future__ import annotations

import errno as _errno

from stripefs.errors import StoreError, StripefsError

__all__ = [
    "BlockUnavailable",
    "BuildError",
    "CacheInUse",
    "CommandNotExecutable",
    "CommandNotFound",
    "DamagedObject",
    "DocumentUnreadable",
    "FormatError",
    "HostileLayer",
    "LayerFailed",
    "NoSuchImage",
    "NoSuchSnapshot",
    "RunError",
    "SnapshotError",
    "UnknownVersion",
]


class FormatError(StripefsError):
    """A document or image is not what its format says, or cannot be expressed in it."""

    exit_code = 4


class UnknownVersion(FormatError):
    """A document is of a version that this program does not know, which makes it no worse for others."""


class BuildError(StripefsError):
    """An image cannot be built from what was given."""

    exit_code = 4


class HostileLayer(BuildError):
    """A layer asks for something that no honest layer needs."""


class DamagedObject(StripefsError):
    """An object of a store does not hold what its name promises."""

    exit_code = 5


class DamagedBlock(DamagedObject):
    """A block of a snapshot was not what it must be when it was read, though nothing that names it is damaged."""


class NoSuchImage(StripefsError):
    """A store has no image of that name."""

    exit_code = 3


class NoSuchSnapshot(StripefsError):
    """A store has no dependency snapshot of that name."""

    exit_code = 3


class BlockUnavailable(StripefsError):
    """A block of a device is not on this machine, and no store has it, whole and in time. A reader gets EIO."""

    exit_code = 3


class DocumentUnreadable(StoreError):
    """The local disk does not give back a block index or metadata that were whole. A reader gets EIO, unless a store
    has the document still."""

    exit_code = 5


class CacheInUse(StripefsError):
    """Another process uses the folder in which blocks are kept."""

    errno = _errno.EBUSY
    exit_code = 32


class RunError(StripefsError):
    """A container could not be run. The exit codes are those of `docker run`."""

    exit_code = 125


class LayerFailed(RunError):
    """One of the trees that a container was to have cannot be mounted. number: which, 0 for the one on top."""

    def __init__(self, message: str, *, hint: str = "", number: int) -> None:
        super().__init__(message, hint=hint)
        self.number = number


class CommandNotExecutable(RunError):
    """The command is there and cannot be executed."""

    exit_code = 126


class CommandNotFound(RunError):
    """The command is not in the container."""

    exit_code = 127


class SnapshotError(StripefsError):
    """The installed files cannot be made into a dependency snapshot. The job goes on without one."""

    exit_code = 4
