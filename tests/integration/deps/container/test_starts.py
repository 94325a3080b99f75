"""Requirements that a container's own pip installs once: above the image on later starts."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.deps.container.job import JOB, SEEN, Job, key_in, project, sources
from tests.integration.deps.python_image import CONFIG, SITE
from tests.support.deps.installed import snapshots_in
from tests.support.deps.wheels import wheel
from tests.tools.imagefs_daemon import Service, built, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]


def test_a_miss_then_hits(pip_job: Job) -> None:
    """Requirements are resolved in the image."""
    pip_job.wants("heavy>=1")
    assert pip_job.run("--deps-wait") == SEEN
    assert "miss" in pip_job.told
    assert "published" in pip_job.told
    (name,) = snapshots_in(pip_job.store).stored()
    lock = pip_job.service.ok("deps", "lock", "--store", str(pip_job.store), name)
    assert lock.startswith("heavy==1.0 \\\n    --hash=sha256:")
    key = key_in(pip_job.told)
    shutil.rmtree(pip_job.wheels)  # of which a hit needs none, but that they are part of the key
    pip_job.make_wheel()
    for flags in ([], ["--rw"], ["--plane", "tree"]):
        assert pip_job.run(*flags) == SEEN
        assert f"hit {key}: above the image" in pip_job.told
        pip_job.nothing_is_left()


def test_it_goes_on_while_it_is_published(job: Job) -> None:
    """Neither an import from what was installed nor one from the snapshot compiles anything."""
    script = f"import os, heavy; print(os.path.exists(heavy.__cached__), heavy.__cached__.startswith('{SITE}'))"
    assert job.run(script=script) == "True True\n"
    assert "in the background" in job.told
    eventually(lambda: len(snapshots_in(job.store).stored()) == 1, "the snapshot")
    assert job.run(script=script) == "True True\n"
    assert "hit" in job.told
    job.nothing_is_left()


def test_packages_of_the_image_that_are_replaced(pip_job: Job) -> None:
    """Files that an upgrade removes are gone above the image as well."""
    wheel(pip_job.wheels, "old", {"old/__init__.py": "VERSION = 2\n"}, version="2.0")
    pip_job.wants("old==2.0")
    script = (
        "import importlib.metadata as m, importlib.util as u, old; "
        "print(old.VERSION, m.version('old'), u.find_spec('old.legacy'), u.find_spec('older'))"
    )
    for flags in (["--deps-wait"], [], ["--plane", "tree"]):
        assert pip_job.run(*flags, script=script) == "2 2.0 None None\n"
    assert "hit" in pip_job.told


def test_a_target_of_its_own(job: Job) -> None:
    script = "import sys; sys.path.append('/opt/deps'); import heavy; print(heavy.VALUE, heavy.__file__)"
    for flags in (["--deps-wait"], []):
        assert job.run(*flags, "--deps-target", "/opt/deps", script=script) == "7 /opt/deps/heavy/__init__.py\n"
    assert "hit" in job.told


@pytest.mark.parametrize("target", ["/tmp/deps", "/dev/shm/deps", "/run"])
def test_a_target_that_the_job_would_not_see(job: Job, target: str) -> None:
    job.run("--deps-target", target, status=2)
    assert f"what is installed in {target} would not be seen" in job.told
    assert job.service.status()["images"] == []


def test_what_is_written_elsewhere(job: Job) -> None:
    code = "open('/etc/written', 'w').write('x')"
    job.wants(*sources(project(job.folder / "project", code)))
    script = "import heavy, os; print(heavy.VALUE, os.path.exists('/etc/written'))"
    assert job.run("--deps-wait", script=script) == "7 True\n"
    assert "it wrote outside the targets: /etc/written: written" in job.told
    assert snapshots_in(job.store).stored() == {}
    assert job.run("--deps-wait", "--ignore-outside", "/etc/written", script=script) == "7 True\n"
    assert "not published the last time: it wrote outside" in job.told
    assert len(snapshots_in(job.store).stored()) == 1


def test_a_project_is_installed_by_the_wheel_that_the_key_has(job: Job) -> None:
    job.wants(str(project(job.folder / "project", "open('/etc/written', 'w').write('x')")))
    script = "import heavy, os; print(heavy.VALUE, os.path.exists('/etc/written'))"
    assert job.run("--deps-wait", script=script) == "7 False\n"
    assert " not published" not in job.told
    assert job.run(script=script) == "7 False\n"
    assert "hit" in job.told


def test_what_the_key_is_made_of(job: Job) -> None:
    """It is that of the start, and nothing is installed to tell it."""
    *lines, empty, digest = job.run("--deps-explain").splitlines()
    assert any(line.split()[0] == "base_image" for line in lines)
    assert not empty
    assert not job.store.exists()
    job.run("--deps-wait")
    assert [*snapshots_in(job.store).stored()] == [digest]
    job.wants("heavy")
    assert "no one version is asked for" not in job.run("--deps-strict", "--deps-explain", status=2)
    assert "--deps-epoch TEXT or --deps-allow-unpinned makes one" in job.told
    job.nothing_is_left()


def test_a_snapshot_is_recorded_like_an_image_and_fetched_whole_at_once(tree: Path, tmp_path: Path) -> None:
    """And not when its start is over, as what an image has besides."""
    built(tree, tmp_path / "images", "t", CONFIG)  # for no trace of any other test may be here
    with contextlib.closing(Service(tmp_path, io_timeout="10")) as service:
        job = Job(service, f"{tmp_path}/images#t", tmp_path)
        job.run("--deps-wait", "--no-record")
        service.stop()
        shutil.rmtree(service.settings.cache)
        script = f"{JOB}; sys = __import__('sys'); sys.stdout.flush(); sys.stdin.read()"
        process = service.start(*job.words(script=script), stdin=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == SEEN
        images = {bool(one["snapshot"]): one for one in service.status()["images"]}
        assert (images[True]["recording"], images[True]["owner"]) == (True, process.pid)
        assert (images[True]["planned_blocks"] > 0, images[False]["planned_blocks"]) == (True, 0)
        process.communicate("")
        job.nothing_is_left()


def test_a_python_that_is_managed_by_the_system(pip_job: Job, pip_tree: Path, tmp_path: Path) -> None:
    """As that of Debian's images, into which pip alone does not install. Another image has another key."""
    key = pip_job.run("--deps-explain").split()[-1]
    subprocess.run(["cp", "-al", pip_tree, tmp_path / "root"], check=True)
    modules = tmp_path / "root" / SITE.lstrip("/") / ".."
    (modules / "EXTERNALLY-MANAGED").write_text("[externally-managed]\nError=ask the system\n")
    built(tmp_path / "root", tmp_path / "images", "t", CONFIG)
    pip_job.image = f"{tmp_path}/images#t"
    assert pip_job.run("--deps-wait") == SEEN
    assert "PEP 668" in pip_job.told
    assert not key.startswith(key_in(pip_job.told))
    assert pip_job.run() == SEEN
    assert "hit" in pip_job.told
    assert "PEP 668" not in pip_job.told
