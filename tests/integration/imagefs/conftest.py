"""Daemons for tests, images for them, and commands of a plain user."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stripefs.fuse import kernel
from tests.support.images import nasty
from tests.support.images.faults import ensure, make_image, mounts_below, until_nothing_is_left
from tests.support.mount_namespace import unshared
from tests.support.other_users import AS_NOBODY, NOBODY, let_others_mount
from tests.tools.containers import fill
from tests.tools.imagefs_daemon import Service, built
from tests.tools.registry import running_registry
from tests.unit.imagefs.cli.conftest import imagefs as imagefs


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tree, and the store in which it is tagged t. They are never changed; a test that changes one makes its own."""
    return make_image(tmp_path_factory.mktemp("image"))


def programs(folder: Path, large: int = 0, **config: Any) -> Path:
    """A store in `folder` with an image of programs, and of the file `large` of so many bytes that compress badly,
    tagged small. config: of the image, such as Cmd."""
    fill(folder / "root")
    if large:
        (folder / "root/large").write_bytes(os.urandom(large))
    built(folder / "root", folder / "store", "small", {"config": {"Env": ["PATH=/bin"], **config}})
    return folder / "store"


def next_line(process: subprocess.Popen[str]) -> str:
    """The next line of its output, once it has said it."""
    assert process.stdout is not None
    line: str = process.stdout.readline()
    assert line, process.communicate(timeout=60)[1]
    return line


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
def target(tmp_path: Path) -> Iterator[str]:
    """A mountpoint, which is clear again when the test is over."""
    path = tmp_path / "mnt"
    path.mkdir()
    yield str(path)
    clear(str(path))


def clear(path: str) -> None:
    while kernel.find_mount(path) is not None:
        kernel.unmount(path, kernel.MNT_DETACH)


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


_COMMAND = """
imagefs() { "$PYTHON" -P -c 'import sys; from imagefs.cli.main import run; sys.exit(run())' "$@"; }
"""


def by_nobody(
    service: Service, store: Path, folder: Path, script: str, *words: str
) -> subprocess.CompletedProcess[str]:
    """The script, run by nobody at home in `folder`, where the store and the empty directory `own` are: $1 and $2. The
    words come behind them."""
    home = folder / "home"
    shutil.copytree(store, home / "store")
    for name in ("own", "run"):
        (home / name).mkdir(mode=0o700)
    for path in (home, *home.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    environment = {name: value for name, value in service.environment.items() if not name.startswith("IMAGEFS_")}
    command = ("bash", "-c", _COMMAND + script, "bash", str(home / "store"), str(home / "own"), *words)
    return subprocess.run(
        unshared(folder, *AS_NOBODY, *command, prepare=let_others_mount(folder)),
        env={**environment, "HOME": str(home), "XDG_RUNTIME_DIR": f"{home}/run", "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=100,
    )
