"""A mount and a daemon whose code is replaced in place, and their workers by SIGHUP under load: nothing goes wrong.

The old versions come from the repository's history.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imagefs.daemon.launcher import is_kept
from tests.integration.imagefs.test_daemon_restarts import GatedServer
from tests.support.checked_content import content, difference
from tests.support.images.faults import ensure
from tests.support.mount_load import MountLoad
from tests.support.refusals import refused
from tests.support.waiting import eventually
from tests.support.written_mounts import content as stored
from tests.tools.containers import fill
from tests.tools.imagefs_daemon import Service
from tests.tools.installed_code import InstalledCode
from tests.tools.mounts import Observed, drop_cache
from tests.tools.s3_server import s3_server

pytestmark = [pytest.mark.mount, pytest.mark.root, pytest.mark.slow]

BEFORE_THE_MOVE = "2e6a15af"
RELEASE_0_1_0 = "0dea901f"

UPGRADED = "0.2.0+upgraded"

_OPTIONS = {
    "plain": (),
    "cached": ("--layout", "striped", "--cache", "cache", "--cache-writes"),
}


class UpgradedMount(Observed):
    """A mount of a local directory that runs from `code`."""

    def __init__(self, folder: Path, code: InstalledCode, options: tuple[str, ...]) -> None:
        self.path, self.source, self.log = folder / "mnt", folder / "source", folder / "log"
        self._code, self._folder, self._options = code, folder, options
        self._process: subprocess.Popen[bytes]
        self.path.mkdir()

    def start(self) -> None:
        command = self._code.command(
            "stripefs", "mount", "--foreground", "--rw", *self._options, str(self.source), str(self.path)
        )
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, env=self._code.environment, stdout=log, stderr=log, start_new_session=True
            )
        eventually(self.in_table, "the mount")
        eventually(lambda: self.status().get("generation") == 1, "the worker")

    def hup(self) -> None:
        self._process.send_signal(signal.SIGHUP)

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`stripefs WORDS` on this mount."""
        command = self._code.command("stripefs", *words, str(self.path))
        return subprocess.run(command, env=self._code.environment, capture_output=True, text=True)

    def status(self) -> dict[str, Any]:
        done = self._run("status", "--json")
        return dict(json.loads(done.stdout)[0]) if done.returncode == 0 else {}

    def serves(self, version: str, generation: int) -> bool:
        status = self.status()
        return (status.get("version"), status.get("generation")) == (version, generation)

    def unmount(self) -> None:
        """By the command, as it is now."""
        done = self._run("umount")
        assert done.returncode == 0, done.stderr
        assert self._process.wait(60) == 0

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self.take_away()


@pytest.fixture
def code(tmp_path: Path) -> InstalledCode:
    return InstalledCode(tmp_path / "code")


@pytest.fixture(params=_OPTIONS)
def mount(request: pytest.FixtureRequest, tmp_path: Path, code: InstalledCode) -> Iterator[UpgradedMount]:
    made = UpgradedMount(tmp_path, code, _OPTIONS[request.param])
    made.source.mkdir()
    MountLoad.prepare(made.source)
    with contextlib.closing(made):
        yield made


def check(mount: UpgradedMount, load: MountLoad) -> None:
    """Every byte that was there, or whose `close` answered, is there: in the mount, and in the store."""
    for name, version, size in [*load.read(), *load.written()]:
        drop_cache(mount.path / name)
        for data in ((mount.path / name).read_bytes(), stored(mount.source, name)):
            assert len(data) == size
            assert not difference(data, version, 0)


@pytest.mark.parametrize("commit", [BEFORE_THE_MOVE, RELEASE_0_1_0])
def test_from_a_version_that_ends_its_worker_at_once(code: InstalledCode, mount: UpgradedMount, commit: str) -> None:
    """Its supervisor kills the worker: who has a file open for writing is told by EIO; nothing else is lost."""
    code.install_commit(commit)
    mount.start()
    load = MountLoad(mount.path)
    old = content("old", 0, 3 << 20)
    (mount.path / "replaced").write_bytes(old)
    with load.running(writers=3):
        writer = os.open(mount.path / "replaced", os.O_WRONLY | os.O_TRUNC)
        os.write(writer, content("new", 0, 2 << 20))
        os.fsync(writer)
        code.install_checkout(UPGRADED)
        load.wait_for_more()
        mount.hup()
        eventually(lambda: mount.serves(UPGRADED, 2), "the worker of this version")
        with refused(errno.EIO):
            os.write(writer, b"more")
        with refused(errno.EIO):
            os.close(writer)
        load.wait_for_more()
    assert not load.problems
    assert len(load.lost) <= 3  # one file of each writer
    assert {error for _, error in load.lost} <= {"EIO"}
    assert (mount.path / "replaced").read_bytes() == stored(mount.source, "replaced") == old
    check(mount, load)
    code.install_commit(commit)  # and back
    mount.hup()
    eventually(lambda: mount.status().get("generation") == 3, "the worker of the old version")
    check(mount, load)
    code.install_checkout(UPGRADED)
    mount.unmount()
    assert "Traceback" not in mount.log_text()
    mount.start()
    check(mount, load)
    mount.unmount()


def test_from_this_version(code: InstalledCode, mount: UpgradedMount) -> None:
    """The worker leaves once no file is being written: no read or write is lost."""
    code.install_checkout("0.2.0")
    mount.start()
    load = MountLoad(mount.path)
    with load.running(writers=3):
        writer = os.open(mount.path / "long", os.O_WRONLY | os.O_CREAT)
        os.write(writer, content("long", 0, 2 << 20))
        code.install_checkout(UPGRADED)
        load.wait_for_more()
        mount.hup()
        eventually(lambda: "the next worker waits" in mount.log_text(), "the worker to wait")
        load.wait_for_more()
        os.write(writer, content("long", 2 << 20, 1 << 20))
        os.close(writer)
        eventually(lambda: mount.serves(UPGRADED, 2), "the next worker", 300)
        load.wait_for_more()
    assert not load.problems
    assert not load.lost
    assert stored(mount.source, "long") == content("long", 0, 3 << 20)
    check(mount, load)
    code.install_commit(RELEASE_0_1_0)  # which has no worker for the supervisor of this version
    mount.hup()
    eventually(lambda: "the worker stays" in mount.log_text(), "the refusal")
    check(mount, load)
    code.install_checkout(UPGRADED)
    mount.unmount()
    assert "Traceback" not in mount.log_text()


# The daemon of images


@pytest.fixture
def service(tmp_path: Path, code: InstalledCode) -> Iterator[Service]:
    """A daemon and commands that run from `code`."""
    with contextlib.closing(Service(tmp_path, background_rate="0", io_timeout="60")) as made:
        made.environment |= code.environment
        yield made


FILES = 40

READ_NAMED = "while read name; do busybox md5sum $name; done; exit 3"


class Container:
    """A container of an image whose file /data/N has the content N; it reads those that it is told to."""

    def __init__(self, service: Service, image: str) -> None:
        self._process = service.start("run", image, "--", "sh", "-c", READ_NAMED, stdin=subprocess.PIPE)

    @staticmethod
    def fill(root: Path) -> None:
        fill(root)
        (root / "data").mkdir()
        for number in range(FILES):
            (root / "data" / f"{number}").write_bytes(_data(number))

    def begin(self, number: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"/data/{number}\n")
        self._process.stdin.flush()

    def end(self, number: int) -> None:
        """Wait for what `begin` asked for."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line == f"{hashlib.md5(_data(number)).hexdigest()}  /data/{number}\n", self._process.communicate()

    def read(self, numbers: range) -> None:
        for number in numbers:
            self.begin(number)
            self.end(number)

    def close(self) -> None:
        out, errors = self._process.communicate(timeout=60)
        assert (self._process.returncode, out, errors) == (3, "", "")


def _data(number: int) -> bytes:
    return random.Random(number).randbytes(300_000 + number)


@pytest.mark.parametrize("commit", [BEFORE_THE_MOVE, RELEASE_0_1_0, ""])
def test_a_running_container_reads_on(code: InstalledCode, service: Service, tmp_path: Path, commit: str) -> None:
    """Of a container whose read is under way, and of whatever it reads later, no read fails."""
    code.install_commit(commit) if commit else code.install_checkout("0.2.0")
    Container.fill(tmp_path / "root")
    service.ok("build", f"dir:{tmp_path / 'root'}", str(tmp_path / "store"), "-t", "t")
    with GatedServer(tmp_path / "store") as server:
        container = Container(service, f"{server.url}#t")
        container.read(range(10))
        code.install_checkout(UPGRADED)
        container.read(range(5, 20))
        server.gate.clear()
        container.begin(FILES - 1)
        eventually(lambda: service.status()["blocks"]["in_flight"] > 0, "the container to wait")
        os.kill(service.status()["supervisor_pid"], signal.SIGHUP)
        eventually(lambda: service.status()["version"] == UPGRADED, "the worker of this version")
        server.gate.set()
        container.end(FILES - 1)
        container.read(range(15, FILES))
        another = Container(service, f"{server.url}#t")
        another.read(range(FILES))
        another.close()
        container.close()
    eventually(lambda: service.status()["images"] == [], "the end of all uses")
    assert "Traceback" not in service.log()
    service.stop()


def test_a_daemon_that_was_not_reloaded_says_so(code: InstalledCode, service: Service, tmp_path: Path) -> None:
    """It cannot load a store's client that has another name since the upgrade."""
    code.install_checkout("0.2.0")
    Container.fill(tmp_path / "root")
    with s3_server() as server:
        service.environment |= {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        service.ok("build", f"dir:{tmp_path / 'root'}", server.url("images"), "-t", "t")
        ensure(service)
        code.install_checkout(UPGRADED)
        code.rename_module("stripefs.store", "object_store", "buckets")
        supervisor, target = service.status()["supervisor_pid"], service.mountpoint()
        for _ in range(2):
            done = service.run("mount", f"{server.url('images')}#t", str(target))
            assert done.stderr == (
                "imagefs: the program is not whole, as when it was upgraded meanwhile: No module named "
                f"'stripefs.store.object_store'; `kill -HUP {supervisor}` has the next worker run from the new one\n"
            )
            assert done.returncode == 3
        os.kill(supervisor, signal.SIGHUP)
        eventually(lambda: service.status()["version"] == UPGRADED, "the worker of this version")
        service.ok("mount", f"{server.url('images')}#t", str(target))
        assert (target / "data" / "7").read_bytes() == _data(7)
        service.ok("umount", str(target))
    service.stop()


def test_a_keeper_is_replaced_while_no_worker_can_be_loaded(
    code: InstalledCode, service: Service, tmp_path: Path
) -> None:
    """The next daemon goes on from what the second keeper was given before there was a worker again."""
    code.install_checkout("0.2.0")
    Container.fill(tmp_path / "root")
    service.ok("build", f"dir:{tmp_path / 'root'}", str(tmp_path / "store"), "-t", "t")
    ensure(service)
    target = service.mountpoint()
    service.ok("mount", f"{tmp_path / 'store'}#t", str(target))
    (first,), supervisor = service.keepers(), service.status()["supervisor_pid"]
    (code.folder / "imagefs" / "daemon" / "worker.py").unlink()
    service.kill_worker()
    eventually(lambda: "requests wait" in service.log(), "the supervisor to wait")
    os.kill(first, signal.SIGKILL)
    eventually(lambda: service.keepers() not in ([], [first]), "the next keeper")
    second = service.keepers()
    os.kill(supervisor, signal.SIGKILL)
    eventually(lambda: not service.answers() and is_kept(service.settings), "the end of the daemon")
    code.install_checkout(UPGRADED)
    ensure(service)
    assert service.keepers() == second
    assert service.status()["version"] == UPGRADED
    assert (target / "data" / "7").read_bytes() == _data(7)
    service.ok("umount", str(target))
    service.stop()
