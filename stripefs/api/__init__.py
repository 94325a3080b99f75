"""stripefs in Python, without a mount: `stripefs.open` and `stripefs.connect`; docs/python.md tells how to use them.

engine       the thread that does it all, forks, the end of the process, errors as OSErrors
sources      connected services and open versions, and the service that a URL means; `source`: one of them
file_reader  files that are read, and many at once
file_writer  files that are written
tree_ops     directories, renames, removals, and the space that files take
filesystem   all of that, for one source
"""

from __future__ import annotations

from typing import Literal, overload

from stripefs.api.file_reader import ReadFile
from stripefs.api.file_writer import WriteFile
from stripefs.api.filesystem import Entry, FileSystem

__all__ = ["Entry", "FileSystem", "ReadFile", "WriteFile", "connect", "open"]


@overload
def open(url: str, mode: Literal["rb"] = "rb", *, root: str = "", **options: object) -> ReadFile: ...
@overload
def open(url: str, mode: Literal["wb", "xb", "ab"], *, root: str = "", **options: object) -> WriteFile: ...
@overload
def open(url: str, mode: str, *, root: str = "", **options: object) -> ReadFile | WriteFile: ...
def open(url: str, mode: str = "rb", *, root: str = "", **options: object) -> ReadFile | WriteFile:
    """Open the file at `url`: `hdfs://namenode:8020/checkpoints/model.bin`, `s3://bucket/key`, a local path.

    Modes: `rb` reads; `wb` writes a new version, published when the file is closed; `xb` does if there is none; `ab`
    writes on behind what is there. root: the URL of the source, as it is mounted; without it that is the nearest
    directory above the file with a pool of striped parts. options: see `FileSystem`.

    Raises OSError: FileNotFoundError, PermissionError, one with EBUSY where somebody else writes the file, …
    """
    if root:
        made = FileSystem(root, **options)
        return made.open(made.path_of(url), mode)
    service, path = FileSystem.of_service(url, **options)
    return service.open(path, mode)


def connect(url: str, **options: object) -> FileSystem:
    """The source at `url`, a directory, with its names and files. Nothing is asked of it yet. options: see
    `FileSystem`."""
    return FileSystem(url, **options)
