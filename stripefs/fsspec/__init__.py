"""stripefs for fsspec, and so for pandas, pyarrow, dask and torch.distributed.checkpoint.

    stripefs+hdfs://namenode:8020/checkpoints/model.bin     also stripefs+file, +s3, +gs, +http, +https
    stripefs://model.bin, with root="hdfs://namenode:8020/checkpoints"

`storage_options` are those of `stripefs.open`: the options of the command, with underscores. Paths are taken letter by
letter. In a transaction files are published together when it ends, each in one step of its own, or none of them. When
an exception leaves the `with` block of a file, nothing of it is published, be it bytes, text or compressed.

filesystem  the file system of one source, and those of services, whose paths have all of the URL
files       text, and what is compressed on its way
"""

from __future__ import annotations

from stripefs.fsspec.filesystem import (
    GcsFileSystem,
    HdfsFileSystem,
    HttpFileSystem,
    HttpsFileSystem,
    LocalFileSystem,
    S3FileSystem,
    StripefsFileSystem,
)

__all__ = [
    "GcsFileSystem",
    "HdfsFileSystem",
    "HttpFileSystem",
    "HttpsFileSystem",
    "LocalFileSystem",
    "S3FileSystem",
    "StripefsFileSystem",
]
