"""Unpinned requirements are resolved before installation, and the key has the answer: real pip and uv, a real index."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.deps.commanding import anew, deps, names, value
from tests.support.deps.wheels import wheel
from tests.tools.imagefs_daemon import Service
from tests.tools.package_index import Index, serving

pytestmark = [pytest.mark.mount, pytest.mark.root]


def publish(folder: Path, name: str, version: str, number: int, *requires: str) -> str:
    """Put a package into an index; the digest of its file."""
    made = wheel(
        folder / name, name, {f"{name}/__init__.py": f"VALUE = {number}\n"}, version=version, requires=requires
    )
    return hashlib.sha256(made.read_bytes()).hexdigest()


@pytest.fixture
def index(folder: Path, service: Service) -> Iterator[Index]:
    """With `heavy`, which needs `light`."""
    projects = folder.parent / "projects"
    publish(projects, "heavy", "1.0", 7, "light")
    publish(projects, "light", "1.0", 8)
    (folder / "requirements.txt").write_text("heavy>=1\n")
    with serving(projects) as made:
        service.environment.pop("PIP_NO_INDEX")
        service.environment |= {"PIP_INDEX_URL": made.url, "UV_INDEX_URL": made.url, "UV_NO_CACHE": "1"}
        service.environment |= {"PIP_NO_CACHE_DIR": "1", "PIP_FIND_LINKS": "", "IMAGEFS_RESOLVE_AGE": "0"}
        yield made


def test_what_is_not_pinned_is_kept_by_what_it_was_resolved_to(
    service: Service, folder: Path, target: Path, index: Index
) -> None:
    arguments = ("uv", "--wait", "--target", target, "-r", "requirements.txt")
    told = deps(service, *arguments)
    assert "published" in told
    assert " not published" not in told
    anew(service, target)
    assert "mounted at" in deps(service, *arguments)
    assert value(sys.executable, target) == "15"
    (first,) = names(folder)
    lock = service.ok("deps", "lock", first[:12])
    assert [line.split(" ")[0] for line in lock.splitlines() if "==" in line] == ["heavy==1.0", "light==1.0"]
    anew(service, target)
    digest = publish(index.folder, "light", "1.1", 9)  # which nothing here names
    assert "miss" in deps(service, *arguments)
    assert value(sys.executable, target) == "16"
    (other,) = set(names(folder)) - {first}
    assert f"light==1.1 \\\n    --hash=sha256:{digest}\n" in service.ok("deps", "lock", other)


@pytest.mark.parametrize("form", ["pip", "uv"])
def test_a_miss_downloads_each_file_once(
    service: Service, folder: Path, target: Path, index: Index, tmp_path: Path, form: str
) -> None:
    """With a cache of the start's own in place of the user's, who has none."""
    (folder / "requirements.txt").write_text("heavy\n")
    service.environment |= {
        "TMPDIR": str(tmp_path / "temporary"),
        "PIP_TRUSTED_HOST": "127.0.0.1",
    }  # else it keeps none
    (tmp_path / "temporary").mkdir()
    assert "miss" in deps(service, form, "--wait", "--target", target, "-r", "requirements.txt")
    files = {path: count for path, count in index.sent.items() if path.endswith(".whl")}
    # uv reads the metadata of a wheel in a file where the index gives no part of one
    assert set(files.values()) == ({1} if form == "pip" else {2})
    assert [path.name for path in (tmp_path / "temporary").iterdir() if path.name.startswith("imagefs-")] == []


def test_an_answer_that_does_not_hold_any_more(service: Service, folder: Path, target: Path, index: Index) -> None:
    """The index has taken away a file that was resolved to, so it is installed without that, and not kept."""
    service.environment["IMAGEFS_RESOLVE_AGE"] = "1h"
    publish(index.folder, "light", "1.1", 9)
    words = ("install", "--target", str(target), "-r", "requirements.txt")
    service.ok("deps", "key", "--target", str(target), "--", "uv", "pip", *words)
    (index.folder / "light/light-1.1-py3-none-any.whl").unlink()
    told = deps(service, "uv", "--wait", *words[1:])
    assert "it runs once more as it was written" in told
    assert "not published: it was installed without what was resolved before" in told
    assert value(sys.executable, target) == "15"
    assert names(folder) == []


@pytest.mark.parametrize("form", ["pip", "uv"])
def test_an_index_without_digests(service: Service, folder: Path, target: Path, index: Index, form: str) -> None:
    """A file may change unseen under its name and version: the installer's own digest is taken, or nothing is kept."""
    index.digests = False
    arguments = (form, "--wait", "--target", target, "-r", "requirements.txt")
    deps(service, *arguments)
    if form == "pip":
        (name,) = names(folder)
        lock = service.ok("deps", "lock", name)
        assert re.findall(r"^(\S+) .*\n    --hash=sha256:", lock, re.MULTILINE) == ["heavy==1.0", "light==1.0"]
    anew(service, target)
    publish(index.folder, "light", "1.0", 80)
    assert "miss" in deps(service, *arguments)
    assert value(sys.executable, target) == "87"
