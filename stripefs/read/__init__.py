"""Reading: pure policy (`policy`), and the reader that carries it out with threads under trio."""

from stripefs.read.reader import OpenFile, Reader

__all__ = ["OpenFile", "Reader"]
