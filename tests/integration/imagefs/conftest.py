"""Daemons for tests, and an image for them."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from stripefs.fuse import kernel
from tests.support.images import nasty
from tests.support.images.faults import ensure, make_image, mounts_below, until_nothing_is_left
from tests.tools.imagefs_daemon import Service
from tests.tools.registry import running_registry


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tree, and the store in which it is tagged t. They are never changed; a test that changes one makes its own."""
    return make_image(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="session")
def nasty_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with everything in it. It is never changed."""
    root = tmp_path_factory.mktemp("nasty") / "root"
    root.mkdir()
    nasty.make(root)
    return root


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of a registry for all tests, which speaks plain http. Each test has repositories of its own in it."""
    with running_registry(tmp_path_factory.mktemp("registry")) as address:
        yield address


@pytest.fixture
def new_image(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """Like `image`, of bytes that are this test's alone: a daemon that served others has nothing of it yet."""
    return make_image(tmp_path / "image", seed=zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    """A daemon of this test's own, with what its module has as SETTINGS."""
    with contextlib.closing(Service(tmp_path, **getattr(request.module, "SETTINGS", {}))) as made:
        yield made


@pytest.fixture(scope="module")
def _host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with contextlib.closing(
        Service(tmp_path_factory.mktemp("host"), **getattr(request.module, "SETTINGS", {}))
    ) as made:
        yield made


@pytest.fixture
def host(_host: Service) -> Iterator[Service]:
    """One daemon for all tests of a module that leave nothing in it, with what the module has as SETTINGS. It runs."""
    if not _host.answers():
        ensure(_host)
    yield _host
    for path in reversed(mounts_below(_host)):
        if path != _host.settings.devices:
            kernel.unmount(path, kernel.MNT_DETACH)  # of a test that failed; the next one is not to suffer
    until_nothing_is_left(_host)
