"""stripefs: big files of remote stores, read at the speed of all the hosts that keep them.

Through FUSE, by the command, or in a Python program: `stripefs.open(URL)`, `stripefs.connect(URL)`. Their modules are
loaded when they are first used.
"""

__version__ = "0.2.0.dev0"

__all__ = ["Entry", "FileSystem", "ReadFile", "WriteFile", "__version__", "connect", "open"]

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from stripefs.api import Entry, FileSystem, ReadFile, WriteFile, connect, open  # noqa: A004


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module("stripefs.api"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
