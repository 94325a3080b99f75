"""Files that appear under their names when they are whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import BinaryIO

__all__ = ["appearing"]


@contextlib.contextmanager
def appearing(path: str | os.PathLike[str], beginning: str = ".") -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` as a whole when that was done. Raises OSError.

    It is for its owner alone. It is not synced, so whoever reads it after a power cut must be able to tell. A process
    that is killed meanwhile leaves a file beside it, whose name starts with `beginning`.
    """
    draft = os.path.join(os.path.dirname(path), f"{beginning}{os.urandom(8).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            yield file
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            os.unlink(draft)
        raise
