"""Reading: pure policy (`policy`), and the reader that carries it out with threads under trio."""

from stripefs.read.open_file import OpenFile
from stripefs.read.reader import Reader

__all__ = ["OpenFile", "Reader"]
