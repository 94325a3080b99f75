"""An image with Python, and jobs that run in containers of it."""

from __future__ import annotations

import errno
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.deps.container.job import Job, cgroups
from tests.integration.deps.python_image import CONFIG, fill_python
from tests.tools.imagefs_daemon import Service, built, eventually


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of an image with Python and a small pip. It is never changed."""
    root = tmp_path_factory.mktemp("python") / "root"
    fill_python(root, small_pip=True)
    return root


@pytest.fixture(scope="session")
def pip_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the real pip. It is never changed."""
    root = tmp_path_factory.mktemp("pip") / "root"
    fill_python(root)
    return root


@pytest.fixture(scope="session")
def image(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    store = tmp_path_factory.mktemp("images")
    built(tree, store, "t", CONFIG)
    return f"{store}#t"


@pytest.fixture(scope="session")
def pip_image(pip_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    store = tmp_path_factory.mktemp("images")
    built(pip_tree, store, "t", CONFIG)
    return f"{store}#t"


@pytest.fixture(autouse=True)
def _no_cgroup_is_left() -> Iterator[None]:
    """The next test finds none of a test that failed, whose container may be ending still."""
    yield
    for folder in cgroups():
        for inner in [*folder.glob("imagefs-*"), folder]:
            eventually(functools.partial(_removed, inner), f"the end of {inner}")


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.ENOENT):
            raise
        return error.errno == errno.ENOENT
    return True


@pytest.fixture
def job(service: Service, image: str, tmp_path: Path) -> Job:
    return Job(service, image, tmp_path)


@pytest.fixture
def pip_job(service: Service, pip_image: str, tmp_path: Path) -> Job:
    """One whose image has the real pip, for what pip itself decides."""
    return Job(service, pip_image, tmp_path)
