"""Requirements that a container's own pip installs once: above the image on later starts."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefs.plane import overlay
from stripefs.mount import kernel
from tests.deps.installed import snapshots_in
from tests.deps.python_image import CONFIG, SITE, fill_python
from tests.deps.wheels import wheel
from tests.imagefs.faults import flip, objects
from tests.imagefs.service import PATIENCE, Service, built, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]

CGROUP = f"/imagefs-deps-{os.getpid()}"

JOB = "import heavy, os; print(heavy.VALUE, os.environ.get('PYTHONPATH'))"
SEEN = "7 None\n"


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of an image with Python. Nobody changes it."""
    root = tmp_path_factory.mktemp("python") / "root"
    fill_python(root)
    return root


@pytest.fixture(scope="session")
def image(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    store = tmp_path_factory.mktemp("images")
    built(tree, store, "t", CONFIG)
    return f"{store}#t"


class Job:
    """What is installed, and how it is started. told: what the last start said."""

    def __init__(self, service: Service, image: str, folder: Path) -> None:
        self.service, self.image, self.folder = service, image, folder
        self.store = folder / "store"
        self.wheels = folder / "wheels"
        self.requirements = folder / "requirements.txt"
        self.told = ""
        wheel(
            self.wheels, "heavy", {"heavy/__init__.py": "VALUE = 7\n", "heavy/data.bin": b"0123456789abcdef" * 20_000}
        )
        self.wants("heavy==1.0")

    def wants(self, *lines: str) -> None:
        self.requirements.write_text("\n".join(["--no-index", f"--find-links {self.wheels}", *lines, ""]))

    def words(self, *flags: str, script: str = JOB) -> list[str]:
        ours = ["--deps", str(self.requirements), "--store", str(self.store), "--network", "none"]
        ours += ["--cgroup-parent", CGROUP]
        return ["run", *ours, *flags, self.image, "--", "python3", "-c", script]

    def run(self, *flags: str, script: str = JOB, status: int = 0) -> str:
        """What the command printed."""
        done = self.service.run(*self.words(*flags, script=script))
        self.told = done.stderr
        assert done.returncode == status, done.stdout + done.stderr + self.service.log()
        return done.stdout

    def left(self) -> list[object]:
        """What is there although nobody runs."""
        cache, runtime = Path(self.service.settings.cache), Path(self.service.settings.runtime)
        uppers = list((cache / "upper").iterdir()) if (cache / "upper").exists() else []
        runs = [one for one in (runtime / "imagefs/runs").iterdir() if one.name != ".lock"]
        mounts = [one for one in self.mounts() if one != self.service.settings.devices]
        inner = [path for folder in cgroups() for path in folder.glob("imagefs-*")]
        ready = list((runtime / "imagefs/ready").iterdir())
        return [*uppers, *runs, *mounts, *inner, *ready, *self.service.status()["images"]]

    def mounts(self) -> list[str]:
        return [one.path for one in kernel.mounts() if Path(one.path).is_relative_to(self.folder)]

    def nothing_is_left(self) -> None:
        eventually(lambda: not self.left(), "nothing to be left")


def cgroups() -> list[Path]:
    """Those below which the containers have theirs."""
    tops = [mount.path for mount in kernel.mounts() if mount.fstype in ("cgroup", "cgroup2")]
    return [Path(top + CGROUP) for top in tops if os.path.isdir(top + CGROUP)]


@pytest.fixture(scope="module", autouse=True)
def _no_cgroup_is_left() -> Iterator[None]:
    yield
    for folder in cgroups():
        for inner in [*folder.glob("imagefs-*"), folder]:  # of a test that failed
            inner.rmdir()


@pytest.fixture
def job(service: Service, image: str, tmp_path: Path) -> Job:
    return Job(service, image, tmp_path)


def project(folder: Path, code: str) -> Path:
    """The sources of `heavy`, which do more than that when they are built."""
    folder.mkdir()
    made = wheel(folder, "heavy", {"heavy/__init__.py": "VALUE = 7\n"})
    backend = f"""\
import shutil, subprocess
def build_wheel(folder, config_settings=None, metadata_directory=None):
    shutil.copy("{made.name}", folder)
    {code}
    return "{made.name}"
"""
    settings = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (folder / "pyproject.toml").write_text(f"{settings}[project]\nname = 'heavy'\nversion = '1.0'\n")
    (folder / "backend.py").write_text(backend)
    return folder


def key_in(told: str) -> str:
    (found,) = re.findall(r"(?:hit|miss) ([0-9a-f]{12}):", told)
    return str(found)


@pytest.mark.parametrize("runtime", ["crun", "runc"])
def test_a_miss_then_hits(job: Job, runtime: str) -> None:
    assert job.run("--deps-wait", "--oci-runtime", runtime) == SEEN
    assert "miss" in job.told
    assert "published" in job.told
    assert len(snapshots_in(job.store).stored()) == 1
    key = key_in(job.told)
    shutil.rmtree(job.wheels)  # of which a hit needs none, but that they are part of the key
    wheel(job.wheels, "heavy", {"heavy/__init__.py": "VALUE = 7\n", "heavy/data.bin": b"0123456789abcdef" * 20_000})
    for flags in ([], ["--rw"], ["--plane", "tree"]):
        assert job.run(*flags, "--oci-runtime", runtime) == SEEN
        assert f"hit {key}: above the image" in job.told
        job.nothing_is_left()


def test_an_import_compiles_nothing(job: Job) -> None:
    script = f"import os, heavy; print(os.path.exists(heavy.__cached__), heavy.__cached__.startswith('{SITE}'))"
    assert job.run("--deps-wait", script=script) == "True True\n"
    assert job.run(script=script) == "True True\n"
    assert "hit" in job.told


def test_it_goes_on_while_it_is_published(job: Job) -> None:
    assert job.run() == SEEN
    assert "in the background" in job.told
    eventually(lambda: len(snapshots_in(job.store).stored()) == 1, "the snapshot")
    job.nothing_is_left()


def test_packages_of_the_image_that_are_replaced(job: Job) -> None:
    """What an upgrade removes is gone above the image as well."""
    wheel(job.wheels, "old", {"old/__init__.py": "VERSION = 2\n"}, version="2.0")
    job.wants("old==2.0")
    script = (
        "import importlib.metadata as m, importlib.util as u, old; "
        "print(old.VERSION, m.version('old'), u.find_spec('old.legacy'), u.find_spec('older'))"
    )
    for flags in (["--deps-wait"], [], ["--plane", "tree"]):
        assert job.run(*flags, script=script) == "2 2.0 None None\n"
    assert "hit" in job.told


def test_a_target_of_its_own(job: Job) -> None:
    script = "import sys; sys.path.append('/opt/deps'); import heavy; print(heavy.VALUE, heavy.__file__)"
    for flags in (["--deps-wait"], []):
        assert job.run(*flags, "--deps-target", "/opt/deps", script=script) == "7 /opt/deps/heavy/__init__.py\n"
    assert "hit" in job.told


def test_what_is_written_elsewhere(job: Job) -> None:
    code = "open('/etc/written', 'w').write('x')"
    job.wants(str(project(job.folder / "project", code)))
    script = "import heavy, os; print(heavy.VALUE, os.path.exists('/etc/written'))"
    assert job.run("--deps-wait", script=script) == "7 True\n"
    assert "it wrote outside the targets: /etc/written: written" in job.told
    assert snapshots_in(job.store).stored() == {}
    assert job.run("--deps-wait", "--ignore-outside", "/etc/written", script=script) == "7 True\n"
    assert "not published the last time: it wrote outside" in job.told
    assert job.run(script=script) == "7 False\n"
    assert "hit" in job.told


@pytest.mark.parametrize("runtime", ["crun", "runc"])
def test_an_installer_that_leaves_something_running(job: Job, runtime: str) -> None:
    code = "null = subprocess.DEVNULL; "
    code += "subprocess.Popen(['sleep', '987'], stdin=null, stdout=null, stderr=null, start_new_session=True)"
    job.wants(str(project(job.folder / "project", code)))
    assert job.run("--deps-wait", "--oci-runtime", runtime) == SEEN
    assert "processes still ran when the installer had ended" in job.told
    assert "(sleep 987)" in job.told
    assert snapshots_in(job.store).stored() == {}


def test_an_installer_that_fails(job: Job) -> None:
    job.wants("heavy==9.0")
    assert job.run(status=1) == ""
    assert "No matching distribution" in job.told
    assert "the installer ended with status 1" in job.told
    job.nothing_is_left()


def test_an_image_without_python(service: Service, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin")
    built(root, tmp_path / "images", "t")
    assert Job(service, f"{tmp_path}/images#t", tmp_path).run(status=127) == ""


def test_requirements_that_may_change(job: Job) -> None:
    job.wants("heavy")
    assert job.run() == SEEN
    assert "no one version is asked for" in job.told
    assert "--deps-epoch X or --deps-allow-unpinned keeps it all the same; installing without a snapshot" in job.told
    assert job.run("--deps-wait", "--deps-epoch", "today") == SEEN
    assert job.run("--deps-epoch", "today") == SEEN
    assert "hit" in job.told


def test_a_store_that_cannot_be_reached(job: Job) -> None:
    for _ in range(2):
        assert job.run("--store", "http://127.0.0.1:1/store") == SEEN
        assert "miss" in job.told


@pytest.mark.parametrize("kind", ["deps", "images", "metadata", "indexes"])
def test_what_is_damaged_is_never_mounted(job: Job, kind: str) -> None:
    job.run("--deps-wait")
    job.service.stop()
    shutil.rmtree(job.service.settings.cache)
    for path in objects(job.store, kind):
        flip(path)
    assert job.run() == SEEN
    assert "miss" in job.told
    job.nothing_is_left()


def test_another_image_has_another_key(job: Job, tree: Path, tmp_path: Path) -> None:
    job.run("--deps-wait")
    key = key_in(job.told)
    root = tmp_path / "root"
    subprocess.run(["cp", "-al", tree, root], check=True)
    (root / "etc/other").touch()
    built(root, tmp_path / "images", "other", CONFIG)
    job.image = f"{tmp_path}/images#other"
    assert job.run() == SEEN
    assert "miss" in job.told
    assert key_in(job.told) != key
    job.nothing_is_left()


def test_a_start_that_is_killed_while_it_installs(job: Job) -> None:
    code = "import os, time; open('begun', 'w').close(); time.sleep(1000)"
    sources = project(job.folder / "project", code)
    job.wants(str(sources))
    process = job.service.start(*job.words())
    eventually((sources / "begun").exists, "the installer")
    process.kill()
    process.communicate()
    only = [job.service.settings.devices]
    eventually(lambda: job.mounts() == only, "the end of all mounts")
    eventually(lambda: job.service.status()["images"] == [], "the image to be let go")
    job.wants("heavy==1.0")
    assert job.run() == SEEN  # which sweeps away what the other left
    job.nothing_is_left()


def test_an_interrupt_ends_it(job: Job) -> None:
    """As it would pip, while this holds the lead."""
    code = "import os, time; open('begun', 'w').close(); time.sleep(1000)"
    sources = project(job.folder / "project", code)
    job.wants(str(sources))
    process = job.service.start(*job.words())
    eventually((sources / "begun").exists, "the installer")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert out == ""
    job.nothing_is_left()


def test_two_hosts_at_once(job: Job, image: str, tmp_path: Path) -> None:
    """One installs, and the other waits for what that publishes."""
    (tmp_path / "other").mkdir()
    with contextlib.closing(Service(tmp_path / "other", background_rate="0")) as other:
        starts = [service.start(*job.words()) for service in (job.service, other)]
        ended = [process.communicate(timeout=PATIENCE * 4) for process in starts]
        assert [out for out, _ in ended] == [SEEN, SEEN]
        told = "".join(errors for _, errors in ended)
        assert told.count("installing in a container") == 1
        assert told.count("above the image") == 1
        eventually(lambda: other.status()["images"] == [] == job.service.status()["images"], "the end of all uses")


def test_a_store_without_room(job: Job, tmp_path: Path) -> None:
    wheel(
        job.wheels, "heavy", {"heavy/__init__.py": "VALUE = 7\n", "heavy/data.bin": random.Random(1).randbytes(1 << 20)}
    )
    small = tmp_path / "small"
    small.mkdir()
    kernel.mount("store", str(small), "tmpfs", 0, "size=256k")
    try:
        assert job.run("--deps-wait", "--store", str(small / "store")) == SEEN
        assert "not published" in job.told
        assert snapshots_in(small / "store").stored() == {}
    finally:
        kernel.unmount(str(small), kernel.MNT_DETACH)


def test_a_cache_on_an_overlay(image: str, tmp_path: Path) -> None:
    """As in most containers: what is written is in memory."""
    disk, cache = tmp_path / "disk", tmp_path / "cache"
    disk.mkdir()
    cache.mkdir()
    overlay.mount([str(cache)], str(disk), str(cache))
    try:
        service = Service(tmp_path, background_rate="0", io_timeout="10")
        try:
            job = Job(service, image, tmp_path)
            assert job.run("--deps-wait") == SEEN
            assert job.run() == SEEN
            assert "hit" in job.told
            eventually(lambda: not [one for one in kernel.mounts() if one.path.startswith(f"{cache}/")], "no mount")
        finally:
            service.close()
    finally:
        if kernel.find_mount(str(cache)) is not None:
            kernel.unmount(str(cache), kernel.MNT_DETACH)


def test_the_snapshot_is_recorded_like_an_image(job: Job) -> None:
    job.run("--deps-wait")
    job.service.stop()
    shutil.rmtree(job.service.settings.cache)
    script = f"{JOB}; sys = __import__('sys'); sys.stdout.flush(); sys.stdin.read()"
    process = job.service.start(*job.words(script=script), stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == SEEN
    images = {bool(one["snapshot"]): one for one in job.service.status()["images"]}
    assert images[True]["recording"]
    assert images[True]["owner"] == process.pid
    process.communicate("")
    job.nothing_is_left()
