"""An HDFS directory that a test can fill, by WebHDFS's writing operations (independent of the client under test)."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import time
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from tests.support.waiting import PATIENCE, eventually

__all__ = ["HdfsPopulate", "WebHdfs"]

_FOR_A_WHILE = ("ecovery", "SafeMode")  # in what the NameNode says of changes that it will allow later


class WebHdfs:
    """One request at a time at the NameNode's web address `host:port`."""

    def __init__(self, address: str, user: str = "root") -> None:
        self.address = address
        self._user = user

    def __call__(self, method: str, operation: str, path: str, body: bytes = b"", **parameters: object) -> Any:
        """The answer's document. Raises AssertionError with the reason for any refusal."""
        query = urlencode({"op": operation, "user.name": self._user, **parameters})
        target = f"/webhdfs/v1{quote(path)}?{query}"
        status, answer, location = self._exchange(self.address, method, target, b"")
        if status == 307:
            status, answer = self._at_datanode(method, location, body)
        assert status in (200, 201), answer.decode()
        return json.loads(answer) if answer else None

    def _at_datanode(self, method: str, location: str, body: bytes) -> tuple[int, bytes]:
        """A DataNode keeps connections to its NameNode; the first request after that was restarted meets a dead one.

        It is refused before anything is done, as 403 EOFException or, under a large body, as a broken pipe.
        """
        where = urlsplit(location)
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                status, answer, _ = self._exchange(where.netloc, method, f"{where.path}?{where.query}", body)
                if status != 403 or b"EOFException" not in answer:
                    return status, answer
            except (BrokenPipeError, ConnectionResetError):
                if time.monotonic() > deadline:
                    raise
            assert time.monotonic() < deadline, f"{where.netloc} has no connection to its NameNode"
            time.sleep(0.2)

    @staticmethod
    def _exchange(address: str, method: str, target: str, body: bytes) -> tuple[int, bytes, str]:
        with contextlib.closing(http.client.HTTPConnection(address, timeout=60)) as connection:
            connection.request(method, target, body, {"Content-Type": "application/octet-stream"})
            response = connection.getresponse()
            return response.status, response.read(), response.getheader("Location", "")


class HdfsPopulate:
    """Changes the directory `root` of HDFS. New versions come by rename; block_size in bytes, a multiple of 512."""

    def __init__(self, web: WebHdfs, root: str, *, block_size: int = 65536, replication: int = 1) -> None:
        self._web = web
        self._root = root
        self._options = {"blocksize": block_size, "replication": replication}
        self.mkdir(b"")

    def write(self, path: bytes, data: bytes) -> None:
        fresh = f"{self._root}/.fresh"
        self._web("PUT", "CREATE", fresh, data, overwrite="true", permission="644", **self._options)
        self._web("PUT", "MKDIRS", self._path(path).rpartition("/")[0], permission="755")
        renamed = self._web("PUT", "RENAME", fresh, destination=self._path(path), renameoptions="OVERWRITE")
        assert renamed is None  # with options the answer has no body
        if self._options["replication"] > 1:
            self._wait_replicated(path)

    def append(self, path: bytes, data: bytes) -> None:
        self._patiently("POST", "APPEND", path, data)

    def truncate(self, path: bytes, length: int) -> None:
        self._patiently("POST", "TRUNCATE", path, newlength=length)
        self._wait_closed(path)

    def delete(self, path: bytes) -> None:
        assert self._patiently("DELETE", "DELETE", path, recursive="true")["boolean"]

    def mkdir(self, path: bytes) -> None:
        assert self._web("PUT", "MKDIRS", self._path(path), permission="755")["boolean"]

    def concat(self, target: bytes, *sources: bytes) -> None:
        """Join the sources onto the target, in place and without moving data."""
        self._web("POST", "CONCAT", self._path(target), sources=",".join(self._path(source) for source in sources))

    def chmod(self, path: bytes, mode: int) -> None:
        self._web("PUT", "SETPERMISSION", self._path(path), permission=f"{mode:o}")

    def set_times(self, path: bytes, mtime_ms: int) -> None:
        self._web("PUT", "SETTIMES", self._path(path), modificationtime=mtime_ms)

    def _patiently(self, method: str, operation: str, path: bytes, body: bytes = b"", **parameters: object) -> Any:
        """A file whose last block is being recovered refuses changes for some seconds, a fresh NameNode all changes."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return self._web(method, operation, self._path(path), body, **parameters)
            except AssertionError as error:
                if not any(word in str(error) for word in _FOR_A_WHILE) or time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def _wait_closed(self, path: bytes) -> None:
        def closed() -> bool:
            return not self._web("GET", "GET_BLOCK_LOCATIONS", self._path(path))["LocatedBlocks"]["isUnderConstruction"]

        eventually(closed, f"{os.fsdecode(path)} to be closed")

    def _wait_replicated(self, path: bytes) -> None:
        """A file is complete as soon as the NameNode knows of one replica of each block; the others come later."""

        def all_known() -> bool:
            blocks = self._web("GET", "GET_BLOCK_LOCATIONS", self._path(path))["LocatedBlocks"]["locatedBlocks"]
            return all(len(block["locations"]) >= self._options["replication"] for block in blocks)

        eventually(all_known, f"{self._options['replication']} replicas of each block of {os.fsdecode(path)}")

    def _path(self, path: bytes) -> str:
        return self._root + path.decode()
