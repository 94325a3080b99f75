"""Progress of long work: stages, one after the other, each of so many bytes."""

from __future__ import annotations

__all__ = ["Progress"]


class Progress:
    """Shows nothing; subclasses that show progress override both methods. May be called from any thread."""

    def stage(self, name: str, total: int = 0) -> None:
        """A new stage begins, of `total` bytes, 0 where that is not known."""

    def advance(self, count: int) -> None:
        """`count` more bytes of the stage are done."""
