"""Errors of the snapshotter. Each is one kind of answer to containerd; `grpc` alone knows the status codes."""

from __future__ import annotations

from stripefs.errors import StripefsError

__all__ = ["AlreadyExists", "FailedPrecondition", "InvalidArgument", "SnapshotNotFound"]


class AlreadyExists(StripefsError):
    """A snapshot of that name is there, or, on a Prepare for an extraction, its layer need not be fetched."""


class SnapshotNotFound(StripefsError):
    """There is no snapshot of that name."""


class InvalidArgument(StripefsError):
    """A request that no state of the snapshotter could answer."""


class FailedPrecondition(StripefsError):
    """A request that the snapshot's state does not allow."""
