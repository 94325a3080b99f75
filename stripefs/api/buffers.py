"""Memory of callers, as bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["as_bytes"]


def as_bytes(buffer: ReadableBuffer) -> memoryview:
    """A view of its bytes in order, whatever its items and dimensions are. Raises TypeError where they are not in one
    piece."""
    view = memoryview(buffer)
    return view.cast("B") if view.nbytes else memoryview(bytearray())  # Python casts no view that is empty
