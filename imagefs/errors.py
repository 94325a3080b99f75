"""Errors of imagefs. Each has a message for people, and where something helps, a hint that says what to do."""

from __future__ import annotations

from stripefs.errors import StripefsError

__all__ = ["BuildError", "DamagedObject", "FormatError", "HostileLayer", "NoSuchImage"]


class FormatError(StripefsError):
    """A document or image is not what its format says, or cannot be expressed in it."""


class BuildError(StripefsError):
    """An image cannot be built from what was given."""


class HostileLayer(BuildError):
    """A layer asks for something that no honest layer needs."""


class DamagedObject(StripefsError):
    """An object of a store does not hold what its name promises."""


class NoSuchImage(StripefsError):
    """A store has no image of that name."""
