"""A real server of the S3 protocol on loopback, with one bucket, and the environment that its clients need."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import boto3
import pytest
from moto.server import ThreadedMotoServer

__all__ = ["BUCKET", "Server", "s3_server"]

BUCKET = "bucket"


class Server(NamedTuple):
    address: str
    client: Any

    def url(self, path: str) -> str:
        return f"s3://{BUCKET}/{path}?endpoint-override={self.address}&scheme=http&region=us-east-1"


@contextmanager
def s3_server() -> Iterator[Server]:
    environment = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        running.start()
        host, port = running.get_host_and_port()
        client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1")
        client.create_bucket(Bucket=BUCKET)
        yield Server(f"{host}:{port}", client)
        client.close()
        running.stop()
