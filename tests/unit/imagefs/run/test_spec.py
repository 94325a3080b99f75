"""A container's rights and view, from an image's config and a user's options."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from imagefs.errors import RunError
from imagefs.run.options import Bind, ImageConfig, ResourceLimits, RunOptions
from imagefs.run.spec import DeviceNode, HostFacts, Spec, arguments, build
from stripefs.errors import ConfigError
from tests.unit.imagefs.run.test_options import GROUP, PASSWD

if TYPE_CHECKING:
    from imagefs.run.spec import TreeKind


class FakeTree:
    """Directories and files by path; links are taken as told."""

    def __init__(self, *directories: str, files: Mapping[str, bytes] | None = None, links: str = "") -> None:
        self._files = {"/etc/passwd": PASSWD, "/etc/group": GROUP, **(files or {})}
        self._directories = {"/", *directories}
        for path in (*directories, *self._files):
            while path != "/":
                path = posixpath.dirname(path)
                self._directories.add(path)
        self._link, _, self._to = links.partition("->")

    def kind(self, path: str) -> TreeKind | None:
        path = self.real(path)
        return "directory" if path in self._directories else "file" if path in self._files else None

    def read(self, path: str) -> bytes:
        return self._files.get(path, b"")

    def real(self, path: str) -> str:
        return self._to + path.removeprefix(self._link) if self._link and path.startswith(self._link) else path


USUAL = ("/proc", "/sys", "/dev", "/tmp", "/run", "/var/tmp", "/work")
FACTS = HostFacts(environ={"OUTSIDE": "told", "TERM": "vt100"}, hostname="node7")


def spec(
    options: RunOptions | None = None,
    image: ImageConfig | None = None,
    tree: FakeTree | None = None,
    facts: HostFacts = FACTS,
    **more: Any,
) -> Spec:
    chosen = (options or RunOptions(command=("true",)))._replace(**more)
    return build(
        chosen,
        image or ImageConfig(),
        tree or FakeTree(*USUAL),
        facts,
        root="/bundle/rootfs",
        volumes="/bundle/volumes",
        name="c1",
        cgroup="/above/c1",
    )


def process(**more: Any) -> dict[str, Any]:
    found: dict[str, Any] = spec(**more).document["process"]
    return found


def mounts(**more: Any) -> dict[str, dict[str, Any]]:
    return {mount["destination"]: mount for mount in spec(**more).document["mounts"]}


# Users


def test_the_user_s_choice_goes_before_the_image_s() -> None:
    image = ImageConfig(user="ann", workdir="/work")
    found = process(image=image)
    assert (found["user"]["uid"], found["cwd"]) == (1000, "/work")
    found = process(image=image, user="7:8", workdir="tmp/")
    assert (found["user"], found["cwd"]) == ({"uid": 7, "gid": 8, "additionalGids": []}, "/tmp")


# The command and its environment


@pytest.mark.parametrize(
    ("command", "entrypoint", "expected"),
    [
        ((), None, ["enter", "-e", "cmd", "-c"]),
        (("mine",), None, ["enter", "-e", "mine"]),
        (("mine",), (), ["mine"]),
        ((), ("other",), ["other"]),
        (("mine",), ("other",), ["other", "mine"]),
    ],
)
def test_the_command(command: tuple[str, ...], entrypoint: tuple[str, ...] | None, expected: list[str]) -> None:
    image = ImageConfig(entrypoint=["enter", "-e"], cmd=["cmd", "-c"])
    assert arguments(RunOptions(command=command, entrypoint=entrypoint), image) == expected


def test_no_command() -> None:
    for options in (RunOptions(), RunOptions(command=("",))):
        with pytest.raises(RunError, match="names no command"):
            arguments(options, ImageConfig())
    with pytest.raises(RunError, match="names no command"):
        arguments(RunOptions(entrypoint=()), ImageConfig(cmd=["meant for the image's entrypoint"]))


def test_the_environment() -> None:
    image = ImageConfig(env=["A=1", "B=1", "A=2", "WITH=a=b", "nothing", "=x", "GONE=1", "EMPTY="])
    found = process(image=image, env=["B=3", "OUTSIDE", "GONE", "NEW=", "NEW=4"])["env"]
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert found == [
        *(path, "HOSTNAME=node7", "HOME=/root"),
        *("A=2", "B=3", "WITH=a=b", "EMPTY=", "OUTSIDE=told", "NEW=4"),
    ]
    found = process(image=ImageConfig(env=["PATH=/opt", "HOME=/srv"]), facts=FACTS._replace(terminal=True))["env"]
    assert found == ["PATH=/opt", "HOSTNAME=node7", "HOME=/srv", "TERM=vt100"]
    with pytest.raises(RunError, match="--env =x"):
        process(env=["=x"])


def test_text_that_no_runtime_takes() -> None:
    for options in ({"command": ("\udcff",)}, {"env": ["A=\udc80"]}, {"command": ("a\0b",)}, {"hostname": "\udcff"}):
        with pytest.raises(RunError, match=r"UTF-8|zero byte"):
            spec(**options)
    assert process(command=("ünï\n",))["args"] == ["ünï\n"]


# Names, networks, limits


def test_limits() -> None:
    linux = spec().document["linux"]
    assert linux["cgroupsPath"] == "/above/c1"
    assert set(linux["resources"]) == {"devices"}
    options = RunOptions(command=("true",), limits=ResourceLimits(1 << 30, 1.5, 99))
    linux = spec(options).document["linux"]
    assert linux["resources"]["memory"] == {"limit": 1 << 30}
    assert linux["resources"]["cpu"] == {"quota": 150_000, "period": 100_000}
    assert linux["resources"]["pids"] == {"limit": 99}
    for hard, soft in ((1000, 1000), (1 << 20, 65536)):
        found = process(facts=FACTS._replace(open_files=hard))["rlimits"]
        assert found == [{"type": "RLIMIT_NOFILE", "soft": soft, "hard": hard}]


def test_devices_are_made_and_allowed() -> None:
    node = DeviceNode("/dev/nvidia0", "c", 195, 0, 0o666, 0, 44)
    linux = spec(facts=FACTS._replace(devices=[node])).document["linux"]
    assert linux["devices"] == [
        {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "fileMode": 0o666, "uid": 0, "gid": 44}
    ]
    rules = linux["resources"]["devices"]
    assert rules[0] == {"allow": False, "access": "rwm"}
    assert rules[-1] == {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rwm"}


# Mounts


def test_files_of_the_host_stand_where_the_image_has_them() -> None:
    facts = FACTS._replace(files=["/etc/hosts", "/etc/resolv.conf"])
    tree = FakeTree(*USUAL, files={"/etc/hosts": b""})
    found = mounts(facts=facts, tree=tree)
    assert found["/etc/hosts"]["options"] == ["bind", "ro", "nosuid", "noexec", "nodev"]
    assert "/etc/resolv.conf" not in found
    found = mounts(facts=facts, tree=tree, binds=[Bind("/mine", "/etc/hosts", directory=False)])
    assert found["/etc/hosts"]["source"] == "/mine"


def test_binds_come_last_and_the_outer_before_the_inner() -> None:
    binds = [Bind("/c", "/work/a/b"), Bind("/a", "/work", writable=False), Bind("/b", "/tmp"), Bind("/d", "/run/x/y")]
    found = spec(binds=binds).document["mounts"]
    assert [mount["source"] for mount in found[-4:]] == ["/a", "/b", "/c", "/d"]
    assert found[-4]["options"] == ["rbind", "rslave", "ro"]
    assert found[-1]["options"] == ["rbind", "rslave", "rw"]
    assert [mount["destination"] for mount in found].count("/tmp") == 1
    shm = mounts(binds=[Bind("/host", "/dev/shm")])["/dev/shm"]
    assert shm["source"] == "/host"


def test_a_bind_without_a_place() -> None:
    with pytest.raises(RunError, match="no directory /data to bind /host") as raised:
        spec(binds=[Bind("/host", "/data")])
    assert "--rw" in raised.value.hint
    with pytest.raises(RunError, match="no file /data"):
        spec(binds=[Bind("/host", "/data", directory=False)])
    with pytest.raises(RunError, match="/etc/passwd in the image is not"):
        spec(binds=[Bind("/host", "/etc/passwd")])
    with pytest.raises(RunError, match="/work in the image is not"):
        spec(binds=[Bind("/host", "/work", directory=False)])
    spec(binds=[Bind("/host", "/data")], writable=True)


def test_volumes_at_places_that_are_memory_anyway() -> None:
    image = ImageConfig(volumes=["/tmp", "/var/tmp", "/run/inner", "/var/tmp/x"])
    found = spec(image=image, tree=FakeTree("/proc", "/tmp"))
    assert [volume.path for volume in found.volumes] == ["/run", "/tmp", "/run/inner", "/var/tmp/x"]
    order = [mount["destination"] for mount in found.document["mounts"]]
    assert order.index("/run") < order.index("/run/inner")
    assert order.count("/tmp") == 1
    with pytest.raises(RunError, match="/etc/passwd is a volume of the image, and no directory"):
        spec(image=ImageConfig(volumes=["/etc/passwd"]))


def test_a_container_sees_its_own_cgroup_read_only() -> None:
    place = mounts()["/sys/fs/cgroup"]
    assert (place["type"], place["source"]) == ("cgroup", "cgroup")
    assert place["options"] == ["nosuid", "noexec", "nodev", "relatime", "ro"]
    order = [mount["destination"] for mount in spec().document["mounts"]]
    assert order.index("/sys") < order.index("/sys/fs/cgroup")
    assert "/sys/fs/cgroup" in spec().document["linux"]["readonlyPaths"]
    hierarchies = FACTS._replace(hierarchies=["/sys/fs/cgroup/pids"])
    assert spec(facts=hierarchies).document["linux"]["readonlyPaths"][-2:] == [
        "/sys/fs/cgroup",
        "/sys/fs/cgroup/pids",
    ]
    bound = spec(facts=hierarchies, binds=[Bind("/host", "/sys/fs/cgroup")]).document
    assert bound["mounts"][-1]["source"] == "/host"
    assert not any(path.startswith("/sys/fs/cgroup") for path in bound["linux"]["readonlyPaths"])


# Input from others


@pytest.mark.parametrize("path", ["/proc", "/proc/self", "/sys", "/sys/fs/cgroup", "/dev", "/linked", "/linked/sys"])
def test_no_volume_takes_the_place_of_the_kernels_files(path: str) -> None:
    image = ImageConfig(cmd=["true"], volumes=[path])
    tree = FakeTree(*USUAL, "/dev/shm", links="/linked->/proc")
    with pytest.raises(RunError, match=f"^{path} is a volume of the image, where"):
        spec(RunOptions(), image, tree)
    assert not spec(RunOptions(writable=True), image, tree).volumes
    bound = RunOptions(binds=[Bind("/here", path)])
    assert path not in {volume.path for volume in spec(bound, image, tree).volumes}


def test_no_command_starts_among_processes() -> None:
    for path in ("/proc/self/fd/7", "/linked/1/cwd", "/proc"):
        with pytest.raises(RunError, match=f"^no command starts in {path}"):
            spec(image=ImageConfig(workdir=path), tree=FakeTree(*USUAL, links="/linked->/proc"))


def test_a_container_without_root() -> None:
    rootless = FACTS._replace(rootless=True)
    found = spec(tree=FakeTree(*USUAL), facts=rootless).document
    assert {"cgroupsPath", "resources"}.isdisjoint(found["linux"])
    assert {"type": "cgroup"} not in found["linux"]["namespaces"]
    shown = {mount["destination"]: mount for mount in found["mounts"]}
    assert "/sys/fs/cgroup" not in shown
    assert (shown["/sys"]["type"], shown["/sys"]["source"]) == ("bind", "/sys")
    assert "gid=5" not in shown["/dev/pts"]["options"]
    assert found["process"]["user"] == {"uid": 0, "gid": 0, "additionalGids": []}
    alone = spec(facts=rootless, network="none").document["mounts"]
    assert [mount["type"] for mount in alone if mount["destination"] == "/sys"] == ["sysfs"]
    for user in ("ann", "0:9"):
        with pytest.raises(RunError, match="a container without root has no user"):
            spec(facts=rootless, user=user)


def test_a_user_namespace_in_the_spec() -> None:
    found = spec(first_id=100_000).document["linux"]
    assert {"type": "user"} in found["namespaces"]
    assert found["uidMappings"] == found["gidMappings"] == [{"containerID": 0, "hostID": 100_000, "size": 65536}]
    assert {"uidMappings", "gidMappings"}.isdisjoint(spec().document["linux"])
    spec(first_id=1, user="65535:65535")
    for user in ("65536", "0:65536"):
        with pytest.raises(RunError, match="beyond the 65536 users"):
            spec(first_id=1, user=user)


@pytest.mark.parametrize(
    ("modes", "writable", "mapped"),
    [
        ("ro", False, False),
        ("rw", True, False),
        ("idmap", True, True),
        ("ro,idmap", False, True),
        ("idmap,rw", True, True),
    ],
)
def test_options_of_binds(modes: str, writable: bool, mapped: bool) -> None:
    assert Bind.parse("/a:/b") == Bind("/a", "/b", writable=True)
    assert Bind.parse(f"a/b:/c//d/:{modes}") == Bind("a/b", "/c/d", writable, mapped=mapped)
    wrong = [f"/a:/b:{text}" for text in (f"{modes},", f"{modes},x", "ro,rw", "", "ro:rw")]
    for text in (*wrong, "", "/a", ":/b", "/a:b", "/a:/", "/a:/b/../c", "/a:"):
        with pytest.raises(ConfigError, match="--bind"):
            Bind.parse(text)
