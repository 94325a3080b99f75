"""The archive that podman is handed for an image, and the names that it completes."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import Any

import pytest

from imagefs.podman import archive, full_name
from stripefs.errors import ConfigError

DIGEST = "ab" * 32


def members(content: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]


def test_the_archive_has_the_config_with_one_layer_in_place_of_all() -> None:
    config: dict[str, Any] = {
        "architecture": "arm64",
        "os": "linux",
        "created": "2026-01-02T03:04:05Z",
        "config": {"Env": ["A=b"], "Entrypoint": ["/bin/sh"]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + "1" * 64, "sha256:" + "2" * 64]},
        "history": [{"created_by": "one"}, {"created_by": "two"}],
    }
    made = archive(config, DIGEST)
    found = members(made.content)
    (manifest,) = json.loads(found["manifest.json"])
    assert manifest["RepoTags"] is None
    written, (layer,) = found[manifest["Config"]], manifest["Layers"]
    assert hashlib.sha256(written).hexdigest() == made.image
    assert hashlib.sha256(found[layer]).hexdigest() == made.layer
    document = json.loads(written)
    assert {name: document[name] for name in ("architecture", "created", "config")} == {
        name: config[name] for name in ("architecture", "created", "config")
    }
    assert document["rootfs"]["diff_ids"] == [f"sha256:{made.layer}"]
    assert len(document["history"]) == 1
    assert members(found[layer]) == {".imagefs": f"{DIGEST}\n".encode()}


def test_an_image_that_says_nothing_gets_what_podman_needs() -> None:
    document = json.loads(members(archive({}, DIGEST).content)[f"{archive({}, DIGEST).image}.json"])
    assert document["os"] == "linux"
    assert document["architecture"]
    assert document["created"].endswith("Z")


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("t", "localhost/t:latest"),
        ("t:1", "localhost/t:1"),
        ("team/t", "localhost/team/t:latest"),
        ("localhost/t", "localhost/t:latest"),
        ("docker.io/library/python:3.12", "docker.io/library/python:3.12"),
        ("registry:5000/t", "registry:5000/t:latest"),
    ],
)
def test_names(name: str, full: str) -> None:
    assert full_name(name) == full
    assert full_name(full) == full


@pytest.mark.parametrize("name", ["", "a b", "-x", "UPPER", "a@sha256:1", "a,b", "/a"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ConfigError, match="no name of an image"):
        full_name(name)
