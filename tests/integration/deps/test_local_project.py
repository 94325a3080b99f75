"""A project of the host is built once for a miss, and what is kept of it is what it would be built to now."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.deps.commanding import anew, deps, names
from tests.support.deps.project import Project
from tests.tools.imagefs_daemon import Service

pytestmark = [pytest.mark.mount, pytest.mark.root]


@pytest.mark.parametrize(("form", "versions"), [("pip", ["1.0"]), ("uv", ["1.0", "2.0"])], ids=["pip", "uv"])
def test_a_project_is_built_once_and_hits_while_it_gives_the_same(
    service: Service, folder: Path, target: Path, form: str, versions: list[str]
) -> None:
    """For the key and the installation together. uv would take what it has built for as long as no time changes."""
    project = Project(folder)
    service.environment |= {"UV_CACHE_DIR": str(folder.parent / "uv-cache")}  # in which uv keeps what it has built
    for version in versions:
        project.tag(version)
        for what in ("miss", "mounted at"):
            told = deps(service, form, "--wait", "--target", target, "-r", "requirements.txt")
            assert (what in told, " not published" in told, project.builds()) == (True, False, 1)
            assert [path.name for path in target.glob("*.dist-info")] == [f"own-{version}.dist-info"]
            anew(service, target)
    assert len(names(folder)) == len(versions)
