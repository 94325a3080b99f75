"""Reading: a pure planner (`planner`), and the reader that carries out its plan with threads under trio."""

from stripefs.read.open_file import OpenFile
from stripefs.read.reader import Reader

__all__ = ["OpenFile", "Reader"]
