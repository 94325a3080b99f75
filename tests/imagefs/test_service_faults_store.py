"""Stores that are away, slow to die, damaged or read-only, under the service."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import subprocess
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard

from imagefs.daemon.client import Client
from imagefs.format.extents import DIGEST
from imagefs.format.plan import Plan, Run
from imagefs.format.trace import Touch, Trace
from imagefs.images import Images
from imagefs.traces import Traces
from stripefs.errors import StripefsError
from stripefs.mount import kernel
from stripefs.store.local import LocalStore
from tests.imagefs.faults import (
    DAMAGE,
    FickleServer,
    ensure,
    make_image,
    mount_here,
    mounts_below,
    objects,
    replace,
    status_of,
    sums,
    umount_here,
)
from tests.imagefs.service import Service, eventually
from tests.store.web_server import Fault

pytestmark = [pytest.mark.mount, pytest.mark.root, pytest.mark.stress]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_image(tmp_path_factory.mktemp("image"))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path, background_rate="0", io_timeout="2", host_timeout="1")
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One daemon for many images."""
    made = Service(tmp_path_factory.mktemp("host"), background_rate="0", io_timeout="5")
    try:
        yield made
    finally:
        made.close()


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
    service: Service, image: tuple[Path, Path], fault: Fault
) -> None:
    target = service.mountpoint()
    with FickleServer(image[1]) as server:
        server.always = fault
        code, line = refused(service, "mount", f"{server.url}#t", str(target))
        assert code == 3
        assert server.url in line
        assert status_of(service)["images"] == []
        server.always = None
        service.ok("mount", f"{server.url}#t", str(target))
        assert sums(target) == sums(image[0])
        service.ok("umount", str(target))


def test_nobody_listens(service: Service) -> None:
    code, line = refused(service, "mount", "http://127.0.0.1:1#t", str(service.mountpoint()))
    assert code == 3
    assert "refused" in line


def test_a_store_that_dies_between_two_documents(service: Service, image: tuple[Path, Path]) -> None:
    """The time-out is that of the whole mount, not of each of its steps."""
    target = service.mountpoint()

    class Dying(FickleServer):
        def next_fault(self, method: str) -> Fault | None:
            asked = [one.path for one in self.seen]
            return "silent" if any("/metadata/" in path or "/indexes/" in path for path in asked) else None

    with Dying(image[1]) as server:
        code, line = refused(service, "mount", f"{server.url}#t", str(target))
        assert code == 3
        assert f"{server.url}: no answer within 2 s" in line
    assert status_of(service)["images"] == []
    assert mounts_below(service) == [service.settings.devices]


@pytest.mark.slow
def test_a_store_that_goes_away_mid_start(service: Service, image: tuple[Path, Path]) -> None:
    source, store = image
    target = service.mountpoint()
    with FickleServer(store) as server:
        service.ok("mount", f"{server.url}#t", str(target))
        client = Client(service.settings)
        server.always = "silent"
        caught: list[OSError] = []

        def read() -> None:
            try:
                with (target / "large").open("rb", buffering=0) as file:
                    file.read(4096)
            except OSError as error:
                caught.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        eventually(lambda: client.status()["blocks"]["in_flight"], "the read to wait")  # and status does not
        reader.join(30)
        assert [error.errno for error in caught] == [errno.EIO]
        server.always = None
        assert sums(target) == sums(source)
        assert client.status()["restarts"] == 0
        service.ok("umount", str(target))


def test_a_store_that_is_away_for_a_while(service: Service, image: tuple[Path, Path]) -> None:
    source, store = image
    service.environment["IMAGEFS_IO_TIMEOUT"] = "60"
    target = service.mountpoint()
    with FickleServer(store) as server:
        service.ok("mount", f"{server.url}#t", str(target))
        server.always = "reset"
        found: list[dict[str, str]] = []
        reader = threading.Thread(target=lambda: found.append(sums(target)))
        reader.start()
        eventually(lambda: status_of(service)["blocks"]["retries"] > 1, "the read to be tried again")
        server.always = None
        reader.join(60)
        assert found == [sums(source)]
        service.ok("umount", str(target))


@pytest.mark.slow
def test_everything_here_and_no_store(service: Service, image: tuple[Path, Path], tmp_path: Path) -> None:
    """By another daemon than the one that fetched it; a web server that is gone, and a directory that is not there."""
    source, store = image
    moved = tmp_path / "store"
    subprocess.run(["cp", "-a", str(store), str(moved)], check=True)
    targets = [service.mountpoint("web"), service.mountpoint("directory")]
    with FickleServer(moved) as server:
        for url, target in zip((server.url, str(moved)), targets, strict=True):
            service.ok("mount", f"{url}#t", str(target))
            assert sums(target) == sums(source)
            service.ok("umount", str(target))
    service.ok("daemon", "--stop")
    eventually(lambda: not service.processes(), "the end of the daemon")
    moved.rename(tmp_path / "away")
    service.environment["IMAGEFS_IO_TIMEOUT"] = "1"
    for url, target in zip((server.url, str(moved)), targets, strict=True):
        service.ok("mount", f"{url}#t", str(target))
        assert sums(target) == sums(source)
        service.ok("umount", str(target))
        assert refused(service, "mount", f"{url}#unknown", str(target))[0] == 3


def test_a_mirror_takes_over(service: Service, image: tuple[Path, Path]) -> None:
    """The image is mounted from a store that dies, then from another one: both mounts are read from there."""
    source, store = image
    first, second = service.mountpoint("first"), service.mountpoint("second")
    with FickleServer(store) as server:
        service.ok("mount", f"{server.url}#t", str(first))
    service.ok("mount", f"{store}#t", str(second))
    assert sums(first) == sums(second) == sums(source)
    for target in (second, first):
        service.ok("umount", str(target))


@pytest.mark.parametrize("kinds", ["host,service,transient", "wrong"])
def test_a_store_that_fails_now_and_then(service: Service, image: tuple[Path, Path], kinds: str) -> None:
    source, store = image
    target = service.mountpoint()
    url = f"faulty+file://{store}?rate=0.2&kinds={kinds}&on=read&seed=3"
    service.environment["IMAGEFS_IO_TIMEOUT"] = "60"
    code = 1
    for _ in range(10):  # whether a read fails depends on how often it was asked
        code = service.run("mount", f"{url}#t", str(target)).returncode
        if code == 0:
            break
        assert code == 3
    assert code == 0
    assert sums(target) == sums(source)
    status = status_of(service)
    assert status["blocks"]["retries"] > 0
    assert status["restarts"] == 0
    service.ok("umount", str(target))


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
    ensure(host)
    if kind == "packs":
        mount_here(host, store, target)
        with pytest.raises(OSError, match="Input/output error"):
            (target / "large").read_bytes()
        assert "pack" in host.log()
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
    assert status_of(host)["restarts"] == 0


def start(service: Service, store: Path, target: Path) -> None:
    """One start, recorded to its end. Not all of the image is read: of one that is here there is nothing to learn."""
    service.ok("mount", f"{store}#t", str(target))
    with (target / "large").open("rb") as file:
        file.read(1 << 20)
    service.ok("ready", str(target))
    service.ok("umount", str(target))


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_plans_traces_and_extents(service: Service, tmp_path: Path, how: str) -> None:
    """A start goes on without what taught it, and what can still be learned is."""
    _, store = make_image(tmp_path / "image")
    target = service.mountpoint()
    start(service, store, target)
    eventually(lambda: objects(store, "plans"), "the plan")
    service.ok("daemon", "--stop")
    for kind in ("plans", "traces"):
        for path in objects(store, kind):
            DAMAGE[how](path)
    start(service, store, target)
    eventually(lambda: len(objects(store, "traces")) == 2, "the next trace")
    eventually(lambda: 'plan_traces": 1' in service.log(), "a plan from that alone")
    service.ok("daemon", "--stop")
    for path in objects(store, "extents"):
        DAMAGE[how](path)
    start(service, store, target)
    eventually(lambda: "leaves no trace" in service.log(), "the trace to be given up")
    assert list(Path(service.settings.cache, "traces").glob("*.raw")) == []


def plans(image: str) -> dict[str, Callable[[], bytes]]:
    real = json.loads(Plan(image, "default", 1, [Run(1, 0, 2)]).to_json())
    return {
        "another image": lambda: json.dumps({**real, "image": "f" * 64}).encode(),
        "another workload": lambda: json.dumps({**real, "workload": "other"}).encode(),
        "another version": lambda: json.dumps({**real, "version": 99}).encode(),
        "other devices": lambda: json.dumps({**real, "runs": [[7, 0, 3], [1, 1 << 26, 1 << 26], [1, 0, 1]]}).encode(),
        "garbage": lambda: os.urandom(1000),
        "nothing": lambda: b"",
        "deep": lambda: b"[" * 100_000,
    }


@pytest.mark.parametrize("where", ["store", "cache"])
def test_plans_that_are_of_no_use(service: Service, tmp_path: Path, where: str) -> None:
    source, store = make_image(tmp_path / "image")
    digest = Images(LocalStore(os.fsencode(store))).resolve("t")
    folder = store if where == "store" else Path(service.settings.cache, "traces")
    path = folder / "plans" / digest / "default"
    path.parent.mkdir(parents=True)
    ensure(service)
    for number, (name, plan) in enumerate(plans(digest).items()):
        path.write_bytes(plan())
        target = service.mountpoint(f"mnt{number}")
        mount_here(service, store, target)
        assert Client(service.settings).ready(str(target))["planned_blocks"] <= 1, name
    assert sums(target) == sums(source)
    status = status_of(service)
    assert status["restarts"] == 0
    assert len(status["images"]) == len(plans(digest))


def test_traces_that_are_of_no_use(service: Service, tmp_path: Path) -> None:
    """Of another image, of another version, of nothing at all, and of a start that touched what is not there."""
    _, store = make_image(tmp_path / "image")
    digest = Images(LocalStore(os.fsencode(store))).resolve("t")
    found = Trace(digest, "default", "node", 1.0, 1.0, "ready", True, "", [])
    real = json.loads(found.to_json())
    foreign = Touch(100, b"no/such/file", 0, 4096, bytes(DIGEST))
    documents = [
        json.dumps({**real, "image": "f" * 64}).encode(),
        json.dumps({**real, "version": 99}).encode(),
        dataclasses.replace(found, touches=[foreign]).to_json(),
        os.urandom(100),
        b"",
    ]
    folder = store / "traces" / digest / "default"
    folder.mkdir(parents=True)
    for number, document in enumerate(documents):
        name = f"{number + 1:015}-{hashlib.sha256(document).hexdigest()[:16]}"
        (folder / name).write_bytes(zstandard.compress(document) if number < 4 else b"garbage")
    target = service.mountpoint()
    start(service, store, target)
    eventually(lambda: "plan_traces" in service.log(), "the plan")
    assert "leaves no trace" not in service.log()
    (plan,) = objects(store, "plans")
    assert Plan.from_json(plan.read_bytes()).blocks >= 8


def test_a_store_that_cannot_be_written(service: Service, tmp_path: Path) -> None:
    """What starts teach is kept on this machine, and used here."""
    source, store = make_image(tmp_path / "image")
    read_only = tmp_path / "read-only"
    read_only.mkdir()
    subprocess.run(["mount", "--bind", str(store), str(read_only)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(read_only)], check=True)
    target = service.mountpoint()
    start(service, read_only, target)
    eventually(lambda: "plan_traces" in service.log(), "the trace")
    local = LocalStore(os.fsencode(Path(service.settings.cache, "traces")))
    digest = Images(LocalStore(os.fsencode(store))).resolve("t")
    assert len(Traces(local).names(digest, "default")) == 1
    assert objects(store, "traces") == objects(store, "plans") == []
    service.ok("mount", f"{read_only}#t", str(target))
    eventually(lambda: status_of(service)["images"][0]["planned_blocks"], "the plan")
    assert sums(target) == sums(source)
    service.ok("umount", str(target))
    service.ok("daemon", "--stop")
    subprocess.run(["umount", str(read_only)], check=True)
