"""An error on our side ends in an installation, an error on the user's side as it would without us."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from imagefs.plane import kernel_mounts
from stripefs.fuse import kernel
from tests.contract.commands import program
from tests.integration.deps.container.job import SEEN, Job, project, sources
from tests.support.deps.installed import snapshots_in
from tests.support.images.faults import flip, objects
from tests.tools.imagefs_daemon import Service, built, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]


@pytest.mark.parametrize("runtime", ["crun", "runc"])
def test_an_installer_that_leaves_something_running(job: Job, runtime: str) -> None:
    code = "null = subprocess.DEVNULL; "
    code += "subprocess.Popen(['sleep', '987'], stdin=null, stdout=null, stderr=null, start_new_session=True)"
    job.wants(*sources(project(job.folder / "project", code)))
    assert job.run("--deps-wait", "--oci-runtime", runtime) == SEEN
    assert "processes still ran when the installer had ended" in job.told
    assert "(sleep 987)" in job.told
    assert snapshots_in(job.store).stored() == {}


def test_an_installer_that_fails(job: Job) -> None:
    job.wants("heavy==9.0")
    assert job.run(status=1) == ""
    assert "could not be resolved: python3 of the image failed: ERROR: No matching distribution found" in job.told
    assert job.run("--deps-epoch", "1", status=1) == ""
    assert "the installer ended with status 1" in job.told
    job.nothing_is_left()


def test_nobody_to_tell(job: Job, tmp_path: Path) -> None:
    """pip would fail by it where it cannot write."""
    script = f"import heavy; open('{tmp_path}/seen', 'w').write(str(heavy.VALUE))"
    words = job.words("--deps-wait", "--bind", f"{tmp_path}:{tmp_path}", script=script)
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", str(program("imagefs")), *words]
    done = subprocess.run(command, env=job.service.environment)
    assert done.returncode == 0
    assert (tmp_path / "seen").read_text() == "7"
    job.run("--deps-wait")
    assert "hit" in job.told


def test_an_image_without_python(service: Service, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin")
    built(root, tmp_path / "images", "t")
    assert Job(service, f"{tmp_path}/images#t", tmp_path).run(status=127) == ""


def test_a_store_that_cannot_be_reached(job: Job) -> None:
    assert job.run("--store", "http://127.0.0.1:1/store") == SEEN
    assert "miss" in job.told


@pytest.mark.parametrize("kind", ["deps", "packs"])
def test_what_is_damaged_is_installed_and_published_anew(job: Job, kind: str) -> None:
    job.run("--deps-wait")
    job.service.stop()
    shutil.rmtree(job.service.settings.cache)
    for path in objects(job.store, kind):
        path.unlink() if kind == "packs" else flip(path)
    assert job.run("--deps-wait") == SEEN
    assert "miss" in job.told
    assert job.run() == SEEN
    assert "hit" in job.told
    job.nothing_is_left()


def test_a_snapshot_that_the_kernel_does_not_mount(job: Job) -> None:
    """It is found out when the container is prepared, and the start goes on without it."""
    job.run("--deps-wait")
    job.kernel_refuses('name.startswith("deps/")')
    assert job.run() == SEEN
    assert "the kernel refuses it; installing in a container" in job.told
    job.nothing_is_left()


def test_a_probe_that_fails(job: Job) -> None:
    """A snapshot of the store is not used then."""
    assert job.run("--deps-wait") == SEEN
    assert job.run("--deps-probe", "import heavy; assert heavy.VALUE == 8") == SEEN
    assert "miss" in job.told
    assert "the probe failed" in job.told
    job.nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_start_that_is_ended_while_it_installs(job: Job, number: signal.Signals) -> None:
    """An interrupt ends it as it would pip, while this holds the lead."""
    made = project(job.folder / "project", "import os, time; open('begun', 'w').close(); time.sleep(1000)")
    job.wants(*sources(made))
    process = job.service.start(*job.words())
    eventually((made / "begun").exists, "the installer")
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert out == ""
    only = [job.service.settings.devices]
    eventually(lambda: job.mounts() == only, "the end of all mounts")
    eventually(lambda: job.service.status()["images"] == [], "the image to be let go")
    job.wants("heavy==1.0")
    assert job.run() == SEEN  # which sweeps away what a killed one left
    job.nothing_is_left()


def test_a_signal_while_requirements_are_resolved_ends_the_start(pip_job: Job) -> None:
    """It does not go on to install and to run the job."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pip_job.requirements.write_text(f"--index-url http://127.0.0.1:{silent.getsockname()[1]}/\nheavy\n")
        process = pip_job.service.start(*pip_job.words("--network", "host", script="print('ran')"))
        silent.settimeout(60)
        with silent.accept()[0]:
            process.terminate()
            out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (128 + signal.SIGTERM, "")
    pip_job.nothing_is_left()


def test_a_cache_on_an_overlay(image: str, tmp_path: Path) -> None:
    """As in most containers: what is written is in memory."""
    disk, cache = tmp_path / "disk", tmp_path / "cache"
    disk.mkdir()
    cache.mkdir()
    kernel_mounts.mount_overlay([str(cache)], str(disk), str(cache))
    try:
        with contextlib.closing(Service(tmp_path, background_rate="0", io_timeout="10")) as service:
            job = Job(service, image, tmp_path)
            assert job.run("--deps-wait") == SEEN
            assert job.run() == SEEN
            assert "hit" in job.told
            eventually(lambda: not [one for one in kernel.mounts() if one.path.startswith(f"{cache}/")], "no mount")
    finally:
        if kernel.find_mount(str(cache)) is not None:
            kernel.unmount(str(cache), kernel.MNT_DETACH)
