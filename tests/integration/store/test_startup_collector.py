"""`imagefs startup collect` into a bucket, by the S3 protocol."""

from __future__ import annotations

from pathlib import Path

from tests.tools.s3_server import Server
from tests.unit.imagefs.startup.collecting import collected_anew


def test_a_bucket_holds_what_many_passes_brought(tmp_path: Path, server: Server) -> None:
    collected_anew(tmp_path, server.url("events"))
