"""Errors as Python has them: each error of stripefs becomes the OSError of its errno, with the file's URL.

`OSError` makes its own subclass of a number: FileNotFoundError of ENOENT, PermissionError of EACCES, and so on. The
error of `stripefs.errors` is its cause. Mistakes in the arguments (a URL that means nothing, a limit out of bounds) are
ConfigErrors there and have EINVAL.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator

from stripefs.errors import StoreError, StripefsError
from stripefs.settings import redact

__all__ = ["CrossSourceRename", "as_os_error", "in_other_process", "os_errors"]


class CrossSourceRename(StoreError):
    """A name that cannot be moved there, as what it stands for would have to be copied."""

    errno = errno.EXDEV


def as_os_error(error: StripefsError, name: str) -> OSError:
    """`error`, which concerns the file of this URL ("" for none)."""
    return OSError(error.errno, str(error), redact(name)) if name else OSError(error.errno, str(error))


@contextlib.contextmanager
def os_errors(name: str | Callable[[], str] = "") -> Iterator[None]:
    """Around calls about the file of this URL, or of the one that `name()` answers when it is needed."""
    try:
        yield
    except StripefsError as error:
        raise as_os_error(error, name if isinstance(name, str) else name()) from error


def in_other_process(name: str) -> OSError:
    """A file that is being written belongs to the process that opened it."""
    return OSError(errno.EBADF, "it was opened for writing by another process, before a fork", redact(name))
