"""`imagefs startup collect` into a bucket, by the S3 protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.s3_server import Server, s3_server
from tests.unit.imagefs.startup.collecting import collected_anew


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with s3_server() as running:
        yield running


def test_a_bucket_holds_what_many_passes_brought(tmp_path: Path, server: Server) -> None:
    collected_anew(tmp_path, server.url("events"))
