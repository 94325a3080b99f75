"""Places that a test can fill: a local directory, a bucket."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


class LocalPopulate:
    """Changes a directory as its users do: new versions come by rename, appends and cuts happen in place."""

    def __init__(self, root: Path) -> None:
        self._root = os.fsencode(root)

    def write(self, path: bytes, data: bytes) -> None:
        target = self._root + path
        self.mkdir(os.path.dirname(path))
        fresh = os.path.join(os.path.dirname(target), b".fresh")
        with open(fresh, "wb") as file:
            file.write(data)
        os.replace(fresh, target)

    def append(self, path: bytes, data: bytes) -> None:
        with open(self._root + path, "ab") as file:
            file.write(data)

    def truncate(self, path: bytes, length: int) -> None:
        os.truncate(self._root + path, length)

    def delete(self, path: bytes) -> None:
        os.unlink(self._root + path)

    def mkdir(self, path: bytes) -> None:
        os.makedirs(self._root + path, exist_ok=True)


class BucketPopulate:
    """Changes a bucket below a prefix. Objects cannot be changed in place: what would, writes them anew."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix

    def write(self, path: bytes, data: bytes) -> None:
        self._client.put_object(Bucket=self._bucket, Key=self._key(path), Body=data)

    def append(self, path: bytes, data: bytes) -> None:
        self.write(path, self._read(path) + data)

    def truncate(self, path: bytes, length: int) -> None:
        self.write(path, self._read(path)[:length])

    def delete(self, path: bytes) -> None:
        self._client.delete_object(Bucket=self._bucket, Key=self._key(path))

    def mkdir(self, path: bytes) -> None:
        self._client.put_object(Bucket=self._bucket, Key=f"{self._key(path)}/", Body=b"")

    def _read(self, path: bytes) -> bytes:
        data: bytes = self._client.get_object(Bucket=self._bucket, Key=self._key(path))["Body"].read()
        return data

    def _key(self, path: bytes) -> str:
        return self._prefix + path.decode()
