"""`imagefs build docker://…` from a registry on loopback, with what skopeo says when it does not go."""

from __future__ import annotations

import gzip
import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from imagefs.repository.images import Images
from tests.support.images.layers import directory, file, layer
from tests.tools.broken_registry import Fault, broken
from tests.tools.registry import push_image
from tests.unit.imagefs.conftest import images

__all__ = ["images"]

COMMAND = Path(sys.executable).with_name("imagefs")

pytestmark = pytest.mark.slow

MIB = 1 << 20
LARGE = layer(file("large", random.Random(7).randbytes(6 * MIB)))
DIGEST = "sha256:" + hashlib.sha256(gzip.compress(LARGE, 6, mtime=0)).hexdigest()


@pytest.fixture(scope="module", autouse=True)
def pushed(registry: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The images `app` and `large` in the registry."""
    folder = tmp_path_factory.mktemp("pushed")
    push_image(folder, registry, "app:1", [layer(directory("etc"), file("etc/a", b"content" * 9000)), layer(file("b"))])
    push_image(folder, registry, "large:1", [LARGE])


def imagefs(tmp_path: Path, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"IMAGEFS_TMP": str(tmp_path / "tmp"), "TMPDIR": str(tmp_path)} | variables
    command = [str(COMMAND), "build", *map(str, arguments), str(tmp_path / "store"), "-t", "app"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_one_line_says_why_it_does_not_go(registry: str, images: Images, tmp_path: Path) -> None:
    missing = "skopeo, which fetches docker:// images, is not installed; apt-get install skopeo"
    for source, flags, variables, what in (
        (f"docker://{registry}/none:1", ["--no-src-tls-verify"], {}, "manifest unknown"),
        (f"docker://{registry}/app:1", [], {}, "http: server gave HTTP response to HTTPS client"),
        (f"docker://{registry}/app:1", [], {"PATH": str(tmp_path)}, missing),
        ("docker:app", [], {}, "write docker://app"),
    ):
        done = imagefs(tmp_path, source, *flags, **variables)
        assert (done.returncode, done.stdout) == (2 if source == "docker:app" else 4, "")
        assert done.stderr.count("\n") == 1
        assert what in done.stderr
    assert images.images() == {}


def test_a_layer_goes_on_where_its_connection_broke(registry: str, images: Images, tmp_path: Path) -> None:
    with broken(registry) as proxy:
        proxy.faults = [
            Fault("/manifests/", "drop"),
            Fault(DIGEST, "drop", 2 * MIB),
            Fault(DIGEST, "busy"),
            Fault(DIGEST, "drop", MIB),
        ]
        done = imagefs(tmp_path, f"docker://{proxy.address}/large:1", "--no-src-tls-verify", "--quiet")
        assert (done.returncode, done.stderr) == (0, "")
        begins = ["", f"bytes={2 * MIB}-", f"bytes={2 * MIB}-", f"bytes={3 * MIB}-"]
        assert proxy.ranges(DIGEST) == begins
        assert proxy.faults == []
        assert proxy.sent < len(LARGE) + 64_000
        proxy.faults = [Fault(DIGEST, "drop", 2 * MIB), Fault(DIGEST, "no-ranges")]  # then it begins again
        assert imagefs(tmp_path, f"docker://{proxy.address}/large:1", "--no-src-tls-verify").returncode == 0
        assert proxy.ranges(DIGEST) == [*begins, "", f"bytes={2 * MIB}-"]
    assert images.resolve("app") == done.stdout.strip()


@pytest.mark.parametrize("part", [DIGEST, "/manifests/"])
def test_a_registry_that_sends_nothing_ends_the_build(registry: str, images: Images, tmp_path: Path, part: str) -> None:
    with broken(registry) as proxy:
        proxy.faults = [Fault(part, "stall", 100)]
        done = imagefs(tmp_path, f"docker://{proxy.address}/large:1", "--no-src-tls-verify", "--io-timeout=1s")
        assert proxy.faults == []
    assert (done.returncode, done.stdout) == (4, "")
    assert "for 1 s" in done.stderr
    assert "--io-timeout waits longer" in done.stderr
    assert done.stderr.count("\n") == 1
    assert images.images() == {}
    assert list((tmp_path / "tmp").iterdir()) == []


def test_bytes_that_changed_behind_a_break_are_refused(registry: str, images: Images, tmp_path: Path) -> None:
    with broken(registry) as proxy:
        proxy.faults = [Fault(DIGEST, "drop", 2 * MIB), Fault(DIGEST, "spoil", MIB)]
        done = imagefs(tmp_path, f"docker://{proxy.address}/large:1", "--no-src-tls-verify")
    assert done.returncode == 4
    assert f"{DIGEST} holds other bytes than its digest says" in done.stderr
    assert images.images() == {}
