"""File systems of services: paths have all of the URL behind `://`."""

from __future__ import annotations

from typing import Any

from fsspec.spec import AbstractFileSystem

from stripefs.api import FileSystem
from stripefs.fsspec.filesystem import StripefsFileSystem

__all__ = [
    "GcsFileSystem",
    "HdfsFileSystem",
    "HttpFileSystem",
    "HttpsFileSystem",
    "LocalFileSystem",
    "S3FileSystem",
]


class _ByUrl(StripefsFileSystem):
    """Paths begin with what stands between `://` and the next slash; sources are found by the pools above a file."""

    def _connect(self, root: str) -> None:
        if root:
            raise ValueError("root= goes with stripefs://; here paths have all of the URL")
        self._services: dict[str, FileSystem] = {}

    def _at(self, path: str) -> tuple[FileSystem, str]:
        authority, _, place = self._strip_protocol(path).partition("/")
        service = self._services.get(authority)
        if service is None:
            url = f"{self.protocol.partition('+')[2]}://{authority}/"
            service = self._services.setdefault(authority, FileSystem.of_service(url, **self._options)[0])
        return service, place

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return AbstractFileSystem._strip_protocol.__func__(cls, path)


class HdfsFileSystem(_ByUrl):
    """`stripefs+hdfs://NAMENODE:PORT/PATH`, or a nameservice, or none."""

    protocol = "stripefs+hdfs"


class LocalFileSystem(_ByUrl):
    """`stripefs+file:///PATH`."""

    protocol = "stripefs+file"
    root_marker = "/"


class S3FileSystem(_ByUrl):
    """`stripefs+s3://BUCKET/KEY`; with an endpoint of its own: `stripefs://` and root="s3://BUCKET?…"."""

    protocol = "stripefs+s3"


class GcsFileSystem(_ByUrl):
    """`stripefs+gs://BUCKET/KEY`."""

    protocol = "stripefs+gs"


class HttpFileSystem(_ByUrl):
    """`stripefs+http://HOST/PATH`, to read files by name."""

    protocol = "stripefs+http"


class HttpsFileSystem(_ByUrl):
    """`stripefs+https://HOST/PATH`, to read files by name."""

    protocol = "stripefs+https"
