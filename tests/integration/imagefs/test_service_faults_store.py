"""Stores that are away, slow to die, damaged or read-only, under the service."""

from __future__ import annotations

import errno
import subprocess
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imagefs.daemon.client import Client
from imagefs.format.trace import Plan, PlanRun
from imagefs.repository.traces import Traces
from stripefs.errors import StripefsError
from stripefs.fuse import kernel
from tests.support.images.faults import (
    DAMAGE,
    FickleServer,
    ensure,
    make_image,
    mount_here,
    objects,
    replace,
    sums,
    umount_here,
)
from tests.support.images.stores import images_in
from tests.support.refusals import errno_of
from tests.tools.imagefs_daemon import Service, eventually
from tests.tools.web_server import Fault

pytestmark = [pytest.mark.mount, pytest.mark.root, pytest.mark.slow]

SETTINGS = {"background_rate": "0", "io_timeout": "20"}


def refused(service: Service, *arguments: str) -> tuple[int, str]:
    """Exit status and the only line of what a command says that fails."""
    done = service.run(*arguments)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.returncode != 0
    return done.returncode, done.stderr


# -- away ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["reset", "silent"])
def test_a_store_that_is_away_when_an_image_is_mounted(
    service: Service, new_image: tuple[Path, Path], fault: Fault
) -> None:
    """The client gives up soon; what the daemon does for others has time."""
    target = service.mountpoint()
    ensure(service)
    service.environment |= {"IMAGEFS_IO_TIMEOUT": "1", "IMAGEFS_HOST_TIMEOUT": "0.3"}
    with FickleServer(new_image[1]) as server:
        server.always = fault
        code, line = refused(service, "mount", f"{server.url}#t", str(target))
        assert code == 3
        assert server.url in line
        assert service.status()["images"] == []
        server.always = None
        mount_here(service, server.url, target)
        assert sums(target) == sums(new_image[0])
        umount_here(service, target)


def test_a_store_that_goes_away_mid_start(service: Service, new_image: tuple[Path, Path]) -> None:
    source, store = new_image  # of which no start has left a plan
    service.environment |= {"IMAGEFS_IO_TIMEOUT": "5", "IMAGEFS_HOST_TIMEOUT": "0.3"}
    target = service.mountpoint()
    with FickleServer(store) as server:
        service.ok("mount", f"{server.url}#t", str(target))
        server.always = "silent"

        def read() -> None:
            with (target / "large").open("rb", buffering=0) as file:
                file.seek(3 << 20)  # beyond what the kernel may have read ahead
                file.read(4096)

        reader = ThreadPoolExecutor(1).submit(errno_of, read)
        eventually(lambda: service.status()["blocks"]["in_flight"], "the read to wait")  # and status does not
        assert reader.result(30) == errno.EIO
        server.always = None
        eventually(lambda: not errno_of(sums, target), "the store to be used again")
        assert sums(target) == sums(source)
        assert service.status()["restarts"] == 0
        umount_here(service, target)


def test_everything_here_and_no_store(service: Service, new_image: tuple[Path, Path], tmp_path: Path) -> None:
    """By another daemon than the one that fetched it; a web server that is gone, and a directory that is not there."""
    source, store = new_image
    targets = [service.mountpoint("web"), service.mountpoint("directory")]
    ensure(service)
    with FickleServer(store) as server:
        for url, target in zip((server.url, str(store)), targets, strict=True):
            mount_here(service, url, target)
            assert sums(target) == sums(source)
            umount_here(service, target)
    service.stop()
    store.rename(tmp_path / "away")
    service.environment["IMAGEFS_IO_TIMEOUT"] = "4"
    for url, target in zip((server.url, str(store)), targets, strict=True):
        service.ok("mount", f"{url}#t", str(target))
        assert sums(target) == sums(source)
        umount_here(service, target)
        assert refused(service, "mount", f"{url}#unknown", str(target))[0] == 3


# -- damaged -------------------------------------------------------------------------------------------------------

_CODES = {"tags": {3, 5}, "images": {5}, "indexes": {5}, "metadata": {5}}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("kind", [*_CODES, "packs"])
def test_a_damaged_object(host: Service, tmp_path: Path, kind: str, how: str) -> None:
    """Nothing wrong is ever shown, the error says which object it is, and a good copy is taken once it is there."""
    source, store = make_image(tmp_path, seed=zlib.crc32(f"{kind} {how}".encode()))
    target = host.mountpoint()
    good = {path: path.read_bytes() for path in objects(store, kind)}
    for path in good:
        DAMAGE[how](path)
    if kind == "packs":
        said = len(host.log())
        mount_here(host, store, target)
        with pytest.raises(OSError, match="Input/output error"):
            (target / "large").read_bytes()
        assert "pack" in host.log()[said:]
    else:
        with pytest.raises(StripefsError) as caught:
            mount_here(host, store, target)
        assert caught.value.exit_code in _CODES[kind]
        assert str(store) in str(caught.value)
        assert kernel.find_mount(str(target)) is None
    for path, data in good.items():
        replace(path, data)
    if kind != "packs":
        mount_here(host, store, target)
    assert sums(target) == sums(source)
    umount_here(host, target)
    assert host.status()["restarts"] == 0


def test_plans_that_are_of_no_use(host: Service, new_image: tuple[Path, Path]) -> None:
    source, store = new_image
    digest = images_in(store).resolve("t")
    runs = [PlanRun(7, 0, 3), PlanRun(1, 1 << 26, 1 << 26), PlanRun(1, 0, 1)]
    path = store / "plans" / digest / "default"
    path.parent.mkdir(parents=True)
    for plan in (Plan(digest, "default", 1, runs).to_json(), Plan("f" * 64, "default", 1, runs).to_json(), b"[" * 9999):
        path.write_bytes(plan)
        mount_here(host, store, host.mountpoint())
        assert Client(host.settings).ready(str(host.mountpoint()))["planned_blocks"] <= 1
        assert sums(host.mountpoint()) == sums(source)
        umount_here(host, host.mountpoint())
    assert host.status()["restarts"] == 0


def test_a_store_that_cannot_be_written(service: Service, tmp_path: Path) -> None:
    """Traces and plans of starts are kept on this machine, and used here."""
    source, store = make_image(tmp_path / "image")
    read_only = tmp_path / "read-only"
    read_only.mkdir()
    subprocess.run(["mount", "--bind", str(store), str(read_only)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(read_only)], check=True)
    target = service.mountpoint()
    ensure(service)
    mount_here(service, read_only, target, record=True)
    with (target / "large").open("rb") as file:
        file.read(1 << 20)  # a part: of an image that is here as a whole there is nothing to learn
    Client(service.settings).ready(str(target))
    umount_here(service, target)
    eventually(lambda: "plan_traces" in service.log(), "the trace")
    kept = Traces(images_in(Path(service.settings.cache, "traces")).repository)
    digest = images_in(store).resolve("t")
    assert len(kept.names(digest, "default")) == 1
    assert objects(store, "traces") == objects(store, "plans") == []
    mount_here(service, read_only, target, record=True)
    eventually(lambda: service.status()["images"][0]["planned_blocks"], "the plan")
    assert sums(target) == sums(source)
    umount_here(service, target)
    service.stop()
    subprocess.run(["umount", str(read_only)], check=True)
