from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tools.s3_server import Server, s3_server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of the S3 protocol."""
    with s3_server() as running:
        yield running
