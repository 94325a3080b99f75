"""Containers whose root is an unprivileged user of the host."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from imagefs.run.options import Bind, ResourceLimits
from tests.integration.imagefs.run.material import both
from tests.support.images import small_image
from tests.support.images.small_image import SmallImage
from tests.tools.containers import Containers, fill

pytestmark = [pytest.mark.mount, pytest.mark.root]

FIRST = 700_000


@pytest.fixture(scope="module")
def owned(tmp_path_factory: pytest.TempPathFactory) -> SmallImage:
    """An image with files of ann (1234), of nobody, and of a user past the ids of a namespace; it has no /var/tmp."""
    root = tmp_path_factory.mktemp("owned") / "root"
    fill(root)
    (root / "var/tmp").rmdir()
    for path, owner, mode in (("srv/ann", 1234, 0o600), ("srv/nobody", 65534, 0o644), ("srv/far", 70_000, 0o644)):
        (root / path).write_text("content")
        (root / path).chmod(mode)
        os.chown(root / path, owner, owner)
    (root / "run/job").mkdir()
    os.chown(root / "run/job", 1234, 100)
    (root / "bin/setuid").write_bytes((root / "bin/busybox").read_bytes())
    (root / "bin/setuid").chmod(0o4755)
    return small_image.make(root, tmp_path_factory.mktemp("image"))


@both
@pytest.mark.parametrize("network", ["host", "none"])
def test_owners_are_those_of_the_image(containers: Containers, owned: SmallImage, runtime: str, network: str) -> None:
    script = (
        "cat /proc/self/uid_map /proc/self/gid_map; cd /srv; stat -c '%n %u %g' / data ann nobody far /run/job /run;"
        "stat -c '%n %u %g' /work; cat /srv/ann; touch /srv/new 2>/dev/null || echo read-only;"
        "touch /tmp/new && stat -c %u /tmp/new"
    )
    status, output, errors = containers.run(
        "sh", "-c", script, image=owned, first_id=FIRST, workdir="/work", runtime=runtime, network=network
    )
    assert (status, errors) == (0, "")
    maps = f"         0     {FIRST}      65536\n"
    files = "/ 0 0\ndata 0 0\nann 1234 1234\nnobody 65534 65534\nfar 65534 65534\n"
    assert output == f"{maps}{maps}{files}/run/job 1234 100\n/run 0 0\n/work 0 0\ncontentread-only\n0\n"


@both
def test_what_is_written_belongs_to_that_user(containers: Containers, owned: SmallImage, runtime: str) -> None:
    script = (
        "touch /srv/new && chmod 600 /srv/ann && stat -c '%n %u %g' /srv/new /srv/ann; mkdir /made;"
        "trap 'exit 3' TERM; echo $$; while :; do sleep 0.05; done"
    )
    running = containers.start("sh", "-c", script, image=owned, first_id=FIRST, writable=True, runtime=runtime)
    running.says("\n1\n")
    assert running.output.startswith("/srv/new 0 0\n/srv/ann 1234 1234\n")
    (upper,) = Path(containers.scratch_dir).glob("*/upper")
    found = {path: (upper / path).stat().st_uid for path in ("srv/new", "srv/ann", "made")}
    assert found == {"srv/new": FIRST, "srv/ann": FIRST + 1234, "made": FIRST}
    inside = [pid for pid in containers.processes() if str(FIRST) in Path(f"/proc/{pid}/uid_map").read_text()]
    assert inside
    for pid in inside:
        assert f"\nUid:\t{FIRST}\t{FIRST}\t{FIRST}\t{FIRST}\n" in Path(f"/proc/{pid}/status").read_text()
    running.send(signal.SIGTERM)
    assert running.end() == 3


@both
def test_setuid_gives_the_containers_root_and_no_more(
    containers: Containers, owned: SmallImage, runtime: str, tmp_path: Path
) -> None:
    """A secret that only the host's root may read stays one, whoever the container's process becomes."""
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    secret.chmod(0o600)
    script = (
        "busybox cp /usr/bin/id /srv/id; chmod 4755 /srv/id; busybox su ann -s /bin/sh -c '/srv/id -u'; cat /secret"
    )
    binds = [Bind(path, path, writable=False) for path in ("/usr", "/lib", "/lib64") if os.path.isdir(path)]
    status, output, errors = containers.run(
        *("sh", "-c", script),
        image=owned,
        first_id=FIRST,
        writable=True,
        binds=[*binds, Bind(str(secret), "/secret")],
        runtime=runtime,
    )
    assert (status, output) == (1, "0\n")
    assert "/secret: Permission denied" in errors


@both
def test_binds_keep_their_owners_unless_they_are_mapped(containers: Containers, runtime: str, tmp_path: Path) -> None:
    """The source lies where only root may look."""
    folder = tmp_path / "private/folder"
    folder.mkdir(parents=True)
    tmp_path.chmod(0o700)
    (folder / "root").write_text("of root")
    (folder / "ann").write_text("of ann")
    os.chown(folder / "ann", 1234, 100)
    script = "stat -c '%n %u %g' root ann; touch new; touch /etc/group; :"
    for mapped, owners, made in (
        (False, "root 65534 65534\nann 65534 65534\n", False),
        (True, "root 0 0\nann 1234 100\n", True),
    ):
        binds = [Bind(str(folder), "/srv", mapped=mapped), Bind(str(folder / "ann"), "/etc/group", writable=False)]
        status, output, errors = containers.run(
            "sh", "-c", script, binds=binds, workdir="/srv", first_id=FIRST, runtime=runtime
        )
        assert (status, output) == (0, owners), errors
        assert "/etc/group: Read-only file system" in errors
        assert (folder / "new").exists() == made
    assert (folder / "new").stat().st_uid == 0


@both
def test_limits_and_devices(containers: Containers, runtime: str) -> None:
    script = (
        "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null;"
        "stat -c %t,%T /dev/fuse;"
        "echo 1 2>/dev/null >/sys/fs/cgroup/memory/memory.limit_in_bytes || echo refused;"
        "mknod /dev/own b 8 0 2>/dev/null || echo no devices"
    )
    status, output, errors = containers.run(
        *("sh", "-c", script),
        first_id=FIRST,
        limits=ResourceLimits(memory=32 << 20),
        devices=["/dev/fuse"],
        runtime=runtime,
    )
    assert (status, output) == (0, f"{32 << 20}\na,e5\nrefused\nno devices\n"), errors


@both
def test_the_streams_stay_the_callers(containers: Containers, runtime: str) -> None:
    before = os.stat("/dev/null")
    for options in ({"first_id": FIRST}, {"first_id": FIRST, "user": "ann"}, {"user": "ann"}):
        running = containers.start("sh", "-c", "chmod 0 /proc/self/fd/0; echo said", runtime=runtime, **options)
        assert running.end() == 0
        now = os.stat("/dev/null")
        assert (now.st_uid, now.st_gid, now.st_mode) == (before.st_uid, before.st_gid, before.st_mode)
        written = os.stat(containers.folder / str(containers._count) / "out")
        assert (written.st_uid, written.st_size) == (0, 5)


def test_a_bind_that_cannot_be_mapped(containers: Containers) -> None:
    binds = [Bind("/sys/kernel", "/srv", mapped=True)]
    status, _, errors = containers.run("true", first_id=FIRST, binds=binds)
    assert (status, errors.count("\n")) == (125, 1)
    assert "--bind /sys/kernel with idmap is on sysfs, which can be shown to no user namespace" in errors
