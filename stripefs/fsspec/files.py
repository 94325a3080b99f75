"""Files that are written as text or compressed; a file whose `with` block an exception leaves is not published.

Python's own wrappers close what they wrap however their `with` block ends, which would publish half a file.
"""

from __future__ import annotations

import contextlib
import io
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fsspec.compression import compr

from stripefs.api import WriteFile

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["wrapped"]


def wrapped(
    file: WriteFile, mode: str, compression: str | None, text: dict[str, str | None]
) -> WriteFile | _Compressed | _Text:
    """`file` with what `mode` and `compression` (a name of fsspec's) put in front of it; text: encoding and so on."""
    made: WriteFile | _Compressed = file
    try:
        if compression is not None:
            made = _Compressed(file, compr[compression](_Sink(file), mode=mode[0]))
        return made if "b" in mode else _Text(made, **text)
    except BaseException:
        made.discard()
        raise


class _Sink(io.BufferedIOBase):
    """The target of a compressor, which it may close without closing the file."""

    def __init__(self, file: WriteFile) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def write(self, data: ReadableBuffer, /) -> int:
        return self._file.write(data)


class _Unpublished(io.IOBase):
    """A file of which nothing is published when an exception leaves its `with` block, or when it was never closed."""

    _file: WriteFile | _Compressed

    def discard(self) -> None:
        """Publish nothing."""
        self._file.discard()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        """Unlike Python's own this closes nothing."""


class _Compressed(_Unpublished, io.BufferedIOBase):
    """A file that is written through a compressor, which writes its last bytes before the file is published."""

    def __init__(self, file: WriteFile, compressor: Any) -> None:
        self._file = file
        self._compressor = compressor

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        self._compressor.write(data)
        return memoryview(data).nbytes

    def close(self) -> None:
        if not self.closed:
            try:
                self._compressor.close()
            except BaseException:
                self.discard()
                raise
            super().close()
            self._file.close()

    def discard(self) -> None:
        """Publish nothing."""
        with contextlib.suppress(OSError):
            self._compressor.close()
        super().close()
        self._file.discard()


class _Text(_Unpublished, io.TextIOWrapper):
    """Text that is written to a file; Python's own would publish it whatever happens."""

    def __init__(self, file: WriteFile | _Compressed, **how: str | None) -> None:
        super().__init__(file, **how)  # type: ignore[arg-type]
        self._file = file
