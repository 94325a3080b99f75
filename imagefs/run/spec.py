"""From an OCI image config and a user's options to the config.json of an OCI runtime. Pure.

A container may do what `docker run` grants: it has the same capabilities, system calls, hidden paths and device rules,
and setuid programs of its image work unless "no new privileges" was asked for. Other than there the host's network is
the default, and the root is read-only unless a writable one was asked for; in a read-only one /tmp, /run, /var/tmp and
the image's volumes are memory. A cgroup namespace and a read-only /sys/fs/cgroup show the container its own limits.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence

from imagefs.errors import RunError
from imagefs.run.options import IDS, Bind, ImageConfig, RunOptions, User, resolve_user
from imagefs.run.privileges import CGROUPS, KNOWN, MASKED, READ_ONLY, Profile, granted
from stripefs.records import NamedTuple

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from typing import Any, Literal, Protocol

    TreeKind = Literal["file", "directory", "other"]

    class TreeView(Protocol):
        """The tree of an image, links in it followed as if its root were /."""

        def kind(self, path: str) -> TreeKind | None:
            """The kind of what is at `path`, None when nothing is."""

        def read(self, path: str) -> bytes:
            """The content of a file; nothing where there is none."""

        def real(self, path: str) -> str:
            """`path` without links, as far as it leads to something."""


__all__ = [
    "PATH",
    "DeviceNode",
    "HostFacts",
    "Spec",
    "Volume",
    "arguments",
    "build",
    "own_mount",
    "variables",
]

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

OPEN_FILES = 65536
"""Soft RLIMIT_NOFILE: enough for data loaders, and programs that close every possible descriptor stay quick."""

_NO_FILES = ("nosuid", "noexec", "nodev")
_PROC = ("/proc", "proc", "proc", _NO_FILES)
_MOUNTS = (
    _PROC,
    ("/dev", "tmpfs", "tmpfs", ("nosuid", "strictatime", "mode=755", "size=65536k")),
    ("/dev/pts", "devpts", "devpts", ("nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5")),
    # Without a size, which is half of the memory: the 64 MiB of Docker are too few for data loaders.
    ("/dev/shm", "tmpfs", "shm", (*_NO_FILES, "mode=1777")),  # noqa: S108
    ("/dev/mqueue", "mqueue", "mqueue", _NO_FILES),
    ("/sys", "sysfs", "sysfs", (*_NO_FILES, "ro")),
    (CGROUPS, "cgroup", "cgroup", (*_NO_FILES, "relatime", "ro")),
)
_KERNELS = ("/proc/", "/sys/")
_SCRATCH = ("/tmp", "/var/tmp")  # noqa: S108
"""Memory that begins empty, for all."""

_FILLED = "/run"
"""Memory as a volume is: services rely on directories that the image has there."""

_DEFAULT_DEVICES = ((1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2), (136, None))
"""null, zero, full, random, urandom, tty, console, ptmx and the terminals: runtimes make these nodes themselves."""

_MEMORY = ("rw", "nosuid", "nodev")

MARKER = "/run/imagefs"
"""The directory in which the command says that it has started, by a file `ready`."""

_NAMESPACES = ("pid", "mount", "ipc", "uts", "cgroup")


class DeviceNode(NamedTuple):
    """A device of the host that the container gets. kind: "c" or "b"."""

    path: str
    kind: str
    major: int
    minor: int
    mode: int
    uid: int
    gid: int


class HostFacts(NamedTuple):
    """Facts about the host for a container: the caller's environment, the host's name, what is at the host's paths.

    devices: of `RunOptions.devices`. terminal: the command gets one. files: of /etc/resolv.conf and /etc/hosts those
    that the host has. open_files: the caller's hard RLIMIT_NOFILE. marker: where the file system is in which the
    command says that it has started, "" for none. hierarchies: the directories of cgroups of version 1. capabilities:
    those that the caller can give. seccomp: None for no filter. rootless: the caller is root of a user namespace
    without other users, and has no cgroups.
    """

    environ: Mapping[str, str]
    hostname: str
    devices: Sequence[DeviceNode] = ()
    files: Sequence[str] = ()
    open_files: int = OPEN_FILES
    terminal: bool = False
    marker: str = ""
    hierarchies: Sequence[str] = ()
    capabilities: Sequence[str] = KNOWN
    seccomp: Profile | None = None
    rootless: bool = False


class Volume(NamedTuple):
    """A directory that begins as the image's at `path` and is mounted there from `source`."""

    path: str
    source: str


class Spec(NamedTuple):
    """`document` is the config.json. missing: directories that the root lacks and that must be made first. volumes: to
    be made first, too."""

    document: dict[str, Any]
    missing: Sequence[str]
    volumes: Sequence[Volume] = ()


def build(
    options: RunOptions,
    image: ImageConfig,
    tree: TreeView,
    facts: HostFacts,
    *,
    root: str,
    volumes: str,
    name: str,
    cgroup: str,
) -> Spec:
    """The container `name`, in `cgroup`, with its root at `root` and its volumes below `volumes`.

    Raises RunError for what cannot be.
    """
    user = resolve_user(options.user or image.user, tree.read("/etc/passwd"), tree.read("/etc/group"))
    workdir = posixpath.normpath("/" + (options.workdir or image.workdir).lstrip("/"))
    if f"{tree.real(workdir)}/".startswith("/proc/"):  # of runtimes with CVE-2024-21626 that is a way to the host
        raise RunError(f"no command starts in {workdir}, which belongs to processes", hint="--workdir DIR")
    hostname = options.hostname or (facts.hostname if options.network == "host" else name)
    filled = [] if options.writable else _volumes(options, image, tree, volumes)
    mounts, missing = _mounts(options, image, tree, facts, workdir, filled)
    if options.first_id and max(user.uid, user.gid, *user.groups, 0) >= IDS:
        raise RunError(f"user {user.uid}:{user.gid} is beyond the {IDS} users of its namespace", hint="--userns host")
    if facts.rootless:
        if (user.uid, user.gid) != (0, 0):
            raise RunError(f"a container without root has no user {user.uid}:{user.gid}", hint="--user 0, or sudo")
        user = user._replace(groups=())
    namespaces = [*_NAMESPACES, *(["network"] if options.network == "none" else [])]
    namespaces += ["user"] if options.first_id else []
    ids = [{"containerID": 0, "hostID": options.first_id, "size": IDS}]
    capabilities = granted(options.added, options.dropped, facts.capabilities)
    document: dict[str, Any] = {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": facts.terminal,
            "user": {"uid": user.uid, "gid": user.gid, "additionalGids": list(user.groups)},
            "args": arguments(options, image),
            "env": _environment(options, image, facts, user, hostname),
            "cwd": workdir,
            "capabilities": _capabilities(user, capabilities),
            # The hard limit stays: not every root may raise it.
            "rlimits": [{"type": "RLIMIT_NOFILE", "soft": min(OPEN_FILES, facts.open_files), "hard": facts.open_files}],
            "noNewPrivileges": options.no_new_privileges,
        },
        "root": {"path": root, "readonly": not options.writable},
        "hostname": hostname,
        "mounts": mounts,
        "linux": {
            "cgroupsPath": cgroup,
            "namespaces": [{"type": kind} for kind in namespaces],
            "devices": [
                {
                    "path": node.path,
                    "type": node.kind,
                    "major": node.major,
                    "minor": node.minor,
                    "fileMode": node.mode,
                    "uid": node.uid,
                    "gid": node.gid,
                }
                for node in facts.devices
            ],
            "resources": _resources(options, facts),
            "rootfsPropagation": "rslave",
            "maskedPaths": list(MASKED),
            "readonlyPaths": _read_only(options, facts),
            **({"uidMappings": ids, "gidMappings": ids} if options.first_id else {}),
            **({"seccomp": facts.seccomp.filter(capabilities)} if facts.seccomp else {}),
        },
    }
    if facts.rootless:
        document["linux"]["namespaces"].remove({"type": "cgroup"})
        del document["linux"]["cgroupsPath"], document["linux"]["resources"]
    for text in _strings(document):
        _check_text(text)
    return Spec(document, missing, filled)


# The process


def arguments(options: RunOptions, image: ImageConfig) -> list[str]:
    """The arguments of the container's process. Raises RunError where neither the user nor the image says."""
    entrypoint = image.entrypoint if options.entrypoint is None else options.entrypoint
    # An Entrypoint of the user's own does not go with arguments that were meant for the image's.
    cmd = options.command or (image.cmd if options.entrypoint is None else ())
    found = [*entrypoint, *cmd]
    if not found or not found[0]:
        raise RunError("the image names no command", hint="give one behind --")
    return found


def _environment(options: RunOptions, image: ImageConfig, facts: HostFacts, user: User, hostname: str) -> list[str]:
    """The image's, what is missing in it, and the user's, later ones in the place of earlier ones."""
    defaults = [PATH, f"HOSTNAME={hostname}", f"HOME={user.home}"]
    if facts.terminal:
        defaults.append(f"TERM={facts.environ.get('TERM', 'xterm')}")
    told = [f"IMAGEFS_READY={MARKER}/ready"] if facts.marker else []
    found = variables((*defaults, *image.env), (*told, *options.env), facts.environ)
    return [f"{name}={value}" for name, value in found.items()]


def variables(own: Sequence[str], wanted: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Variables of the NAME=VALUE of `own` and of `wanted`, of which the later count. NAME alone, which only users
    write, has the value that it has in `environ`, or none. Raises RunError."""
    found = {}
    for entry in own:
        name, equals, value = entry.partition("=")
        if name and equals:
            found[name] = value
    for entry in wanted:
        name, equals, value = entry.partition("=")
        if not name:
            raise RunError(f"--env {entry} is not NAME or NAME=VALUE")
        if equals or name in environ:
            found[name] = value if equals else environ[name]
        else:
            found.pop(name, None)
    return found


def _capabilities(user: User, names: list[str]) -> dict[str, list[str]]:
    """root has them; others may only get them by setuid programs."""
    now = names if user.uid == 0 else []
    return {"bounding": names, "effective": now, "permitted": now, "inheritable": [], "ambient": []}


# Mounts


def own_mount(path: str, image: ImageConfig) -> str:
    """The file system that a container mounts for itself at or above this path, "" for none: what an image has there is
    hidden, or copied."""
    own = [*(entry[0] for entry in _MOUNTS), *_SCRATCH, _FILLED, *image.volumes]
    return next((one for one in own if f"{path}/".startswith(f"{one}/")), "")


def _read_only(options: RunOptions, facts: HostFacts) -> list[str]:
    """crun shows these paths anew before it makes its mounts read-only, so each hierarchy below needs that as well."""
    taken = {bind.target for bind in options.binds}
    paths = [path for path in READ_ONLY if path not in taken]
    if CGROUPS in paths:
        paths += [path for path in facts.hierarchies if path not in taken]
    return paths


def _volumes(options: RunOptions, image: ImageConfig, tree: TreeView, folder: str) -> list[Volume]:
    """The volumes that no bind of the user's takes the place of, the outer before the inner ones. Raises RunError."""
    taken = {bind.target for bind in options.binds}
    wanted = {_FILLED, *(path for path in image.volumes if path not in _SCRATCH or tree.kind(path))} - taken
    for path in sorted(wanted):
        if tree.kind(path) not in ("directory", None):
            raise RunError(f"{path} is a volume of the image, and no directory there", hint="build it without")
        # crun would take its own /proc for the kernel's.
        if any(f"{one}/".startswith(_KERNELS) or one == "/dev" for one in (path, tree.real(path))):
            raise RunError(
                f"{path} is a volume of the image, where the kernel's files must be", hint="build it without"
            )
    ordered = sorted(wanted, key=lambda path: (path.count("/"), path))
    return [Volume(path, f"{folder}/{number}") for number, path in enumerate(ordered)]


def _mounts(
    options: RunOptions, image: ImageConfig, tree: TreeView, facts: HostFacts, workdir: str, volumes: Sequence[Volume]
) -> tuple[list[dict[str, Any]], list[str]]:
    """In the order in which they are mounted; and which directories the tree lacks for them."""
    binds = sorted(options.binds, key=lambda bind: bind.target.count("/"))
    taken = {bind.target for bind in binds}
    mounts = [_mount(*entry) for entry in _MOUNTS if entry[0] not in taken]
    if facts.rootless:
        mounts = [_rootless(mount, options) for mount in mounts if mount["type"] != "cgroup"]
    if not options.writable:
        filled = {volume.path for volume in volumes}
        scratch = [path for path in _SCRATCH if path not in taken | filled and (path == "/tmp" or tree.kind(path))]  # noqa: S108
        mounts += [_mount(path, "tmpfs", "tmpfs", (*_MEMORY, "mode=1777")) for path in scratch]
        mounts += [_mount(volume.path, "bind", volume.source, ("bind", *_MEMORY)) for volume in volumes]
    for path in facts.files:
        if path not in taken and tree.kind(path) == "file":
            mounts.append(_mount(path, "bind", path, ("bind", "ro", *_NO_FILES)))
    fixed = [mount["destination"] for mount in mounts]
    covering = [*fixed, *taken]
    # Runtimes make the places of mounts where they can write, but not those of volumes that are just directories.
    made = [bind.target for bind in binds if bind.made]
    wanted = [path for path in image.volumes if path not in taken] if options.writable else [*fixed, workdir, *made]
    missing = [path for path in wanted if not _is_covered(path, covering) and tree.kind(path) is None]
    if not options.writable:
        for bind in binds:
            _check_target(bind, tree, covering)
    # A link that leads to nothing is followed here, as one runtime would refuse it and the other replace it.
    bound = [_bind(bind if tree.kind(bind.target) else bind._replace(target=tree.real(bind.target))) for bind in binds]
    inner = [mount for mount in bound if _is_covered(mount["destination"], [MARKER])]
    mounts += [mount for mount in bound if mount not in inner]
    if facts.marker and MARKER not in taken:
        mounts.append(_mount(MARKER, "bind", facts.marker, ("bind", "rw", *_NO_FILES)))
    return mounts + inner, missing


def _mount(target: str, kind: str, source: str, options: Sequence[str]) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": source, "options": list(options)}


def _rootless(mount: dict[str, Any], options: RunOptions) -> dict[str, Any]:
    """The mount as a user namespace with one group allows it, to whom the host's network does not belong."""
    if mount["type"] == "sysfs" and options.network == "host":
        return mount | {"type": "bind", "source": "/sys", "options": ["rbind", "rslave", *mount["options"]]}
    return mount | {"options": [one for one in mount["options"] if one != "gid=5"]}


def _bind(bind: Bind) -> dict[str, Any]:
    # rslave: what the host unmounts below the source goes away in the container too, and is not kept alive by it.
    kind = "rbind" if bind.directory else "bind"
    flags = (kind, "rslave", "rw" if bind.writable else "ro")
    return _mount(bind.target, "bind", bind.source, (*flags, *_NO_FILES) if bind.inert else flags)


def _check_target(bind: Bind, tree: TreeView, others: Sequence[str]) -> None:
    """Raises RunError where a read-only image has no place for it. Below other mounts the runtime makes or finds it."""
    if _is_covered(bind.target, others) or _is_covered(tree.real(bind.target), others):
        return
    wanted = "directory" if bind.directory else "file"
    kind = tree.kind(bind.target)
    if kind is None and bind.made:
        return
    if kind is None:
        raise RunError(
            f"the image has no {wanted} {bind.target} to bind {bind.source} to, and it is read-only",
            hint="--rw lets it be made",
        )
    if bind.directory != (kind == "directory"):
        raise RunError(f"{bind.source} is a {wanted}, and {bind.target} in the image is not")


def _is_covered(path: str, mounts: Sequence[str]) -> bool:
    """Tells whether one of `mounts` lies above `path`, so that the image's own tree does not matter there."""
    return any(path.startswith(f"{other}/") for other in mounts)


# Limits


def _resources(options: RunOptions, facts: HostFacts) -> dict[str, Any]:
    limits = options.limits
    found: dict[str, Any] = {"devices": list(_device_rules(facts.devices))}
    if limits.memory:
        found["memory"] = {"limit": limits.memory}
    if limits.cpus:
        found["cpu"] = {"quota": max(1000, int(limits.cpus * 100_000)), "period": 100_000}
    if limits.processes:
        found["pids"] = {"limit": limits.processes}
    return found


def _device_rules(devices: Sequence[DeviceNode]) -> Iterator[dict[str, Any]]:
    yield {"allow": False, "access": "rwm"}
    for kind in ("c", "b"):
        yield {"allow": True, "type": kind, "access": "m"}
    for major, minor in _DEFAULT_DEVICES:
        rule = {"allow": True, "type": "c", "major": major, "access": "rwm"}
        yield rule if minor is None else {**rule, "minor": minor}
    for node in devices:
        yield {"allow": True, "type": node.kind, "major": node.major, "minor": node.minor, "access": "rwm"}


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RunError(f"{text!r} is no UTF-8 text, and OCI runtimes take no other") from error
    if "\0" in text:
        raise RunError(f"{text!r} has a zero byte in it")
