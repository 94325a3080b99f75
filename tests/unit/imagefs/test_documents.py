"""Clients of stores that are loaded ahead: one that cannot be loaded is no reason for anything else to fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagefs.daemon import documents
from imagefs.daemon.documents import Documents
from imagefs.daemon.metadata_cache import MetadataCache


@pytest.mark.parametrize("error", [ImportError("socksio"), ValueError("proxy"), OSError(2, "none"), SystemExit(1)])
async def test_a_client_that_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    loaded = []

    def prepare(scheme: str) -> None:
        loaded.append(scheme)
        raise error

    monkeypatch.setattr(documents, "prepare", prepare)
    cache = MetadataCache(tmp_path)
    cache.remember("s3://bucket/images", "t", "0" * 64)
    await Documents(cache, 1.0).prepare()
    assert sorted(loaded) == ["http", "s3"]


@pytest.mark.parametrize("kept", [b"", b"\xff", b"[]", b"[" * 100_000, b'{"store": 5}', b'{"store": "what://is/this"}'])
async def test_a_store_that_is_remembered_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bytes) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(documents, "prepare", loaded.append)
    (tmp_path / "names").mkdir()
    (tmp_path / "names" / "0").write_bytes(kept)
    await Documents(MetadataCache(tmp_path), 1.0).prepare()
    assert loaded == ["http"]
