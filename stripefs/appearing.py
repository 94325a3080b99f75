"""Files that appear under their names when they are whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import BinaryIO

__all__ = ["appearing", "write_output"]


@contextlib.contextmanager
def appearing(path: str | os.PathLike[str], beginning: str = ".", mode: int = 0o600) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` as a whole when that was done. Raises OSError.

    It is for its owner alone, unless `mode` less the umask says otherwise. It is not synced, so whoever reads it after
    a power cut must be able to tell. A process that is killed meanwhile leaves a file beside it, whose name starts with
    `beginning`.
    """
    draft = os.path.join(os.path.dirname(path), f"{beginning}{os.urandom(8).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as file:
            yield file
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            os.unlink(draft)
        raise


def write_output(path: str | os.PathLike[str], texts: Iterable[str]) -> None:
    """Write a file that a user named. Raises OSError.

    A regular file, or that which a link leads to, is replaced as a whole. Anything else, such as a pipe or a device, is
    written to and stays what it is.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "w", encoding="utf-8") as place:
            place.writelines(texts)
        return
    with appearing(os.path.realpath(path), mode=0o666) as file:
        file.writelines(text.encode() for text in texts)
