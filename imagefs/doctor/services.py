"""The services of a host: the two of ours, whether they answer, to whom, and whether they run what is installed; and
containerd, its version and whether its configuration leads to the snapshotter and tells it what it must know.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
import time
import tomllib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import stripefs
from imagefs.daemon import processes
from imagefs.daemon.client import Client
from imagefs.doctor import CheckResult, CheckState
from imagefs.settings import DaemonSettings
from imagefs.snapshotter.containerd_config import (
    IMAGES_PLUGIN,
    PLUGIN,
    RUNTIME_PLUGIN,
    TRANSFER_PLUGIN,
    V1_CRI_PLUGIN,
    parse_version,
)
from stripefs.errors import MountError

__all__ = [
    "ContainerdFacts",
    "containerd_facts",
    "daemon_findings",
    "installed_at",
    "judge_containerd",
    "runs_since",
    "snapshotter_findings",
    "speaks_http2",
    "uses_snapshotter",
]

_ANSWERS_WITHIN = 10.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""The first bytes of a client of HTTP/2, and so of gRPC (RFC 9113, 3.4): the preface and an empty SETTINGS frame."""

_SETTINGS = 4

_CONTAINERD_ANSWERS_WITHIN = 30.0
_OLDEST = (1, 6, 0)
_EXPORTS_SINCE = (1, 7, 17)
_TRANSFER_SINCE = (2, 1, 0)
_REBASE_SINCE = (2, 4, 0)
_SERVER_PLUGIN = "io.containerd.server.v1.grpc"
"""Has the socket's address in a configuration of version 4, which containerd 2.3 and later print."""

_CONFIGURE = "`imagefs snapshotter config` prints the block for /etc/containerd/config.toml; then restart containerd"


def daemon_findings(settings: DaemonSettings, *, needed: bool) -> list[CheckResult]:
    """needed: containerd's containers want it; else the first mount starts one."""
    try:
        status = Client(settings).status()
    except MountError as error:
        state: CheckState = "fail" if needed else "warn"
        cost = "containers that need blocks of the store wait, and new ones do not start" if needed else "none yet"
        remedy = "systemctl start imagefs (`imagefs install --enable`)" if needed else "`imagefs mount` starts one"
        return [CheckResult("daemon.running", state, error.message, cost, remedy)]
    findings = [CheckResult("daemon.running", "ok", f"the daemon answers (pid {status['supervisor_pid']})")]
    if _namespace(int(status["supervisor_pid"])) not in (0, processes.namespace()):
        findings.append(
            CheckResult(
                "daemon.namespace",
                "warn",
                "the daemon is in another mount namespace than this program",
                "its mounts are seen here where they are propagated; `imagefs mount` here needs a daemon of its own",
                "in Kubernetes that is as it should be (mountPropagation: Bidirectional)",
            )
        )
    if status.get("version") != stripefs.__version__:
        found = f"the daemon is version {status.get('version')}, this program {stripefs.__version__}"
        findings.append(_old("daemon", found, "systemctl reload imagefs"))
    else:
        findings.append(_age("daemon", int(status["worker_pid"]), "systemctl reload imagefs"))
    return findings


def snapshotter_findings(path: str, *, needed: bool) -> list[CheckResult]:
    """path: of the socket. needed: containerd is configured to use it."""
    remedy = "systemctl start imagefs-snapshotter (`imagefs install --enable`); its log says more"
    cost = "containerd starts no container by it" if needed else "none: containerd is not configured to use it"
    if (peer := speaks_http2(path)) is None:
        return [
            CheckResult("snapshotter.running", "fail" if needed else "warn", f"nothing answers at {path}", cost, remedy)
        ]
    findings = [CheckResult("snapshotter.running", "ok", f"the snapshotter answers at {path} (pid {peer})")]
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o007:
        findings.append(
            CheckResult(
                "snapshotter.socket",
                "fail",
                f"{path} has the mode {mode:04o}",
                "every local user can have root mount and remove images",
                f"chmod 0600 {path}",
            )
        )
    else:
        findings.append(CheckResult("snapshotter.socket", "ok", f"only its owner and group reach {path}"))
    findings.append(_age("snapshotter", peer, "systemctl restart imagefs-snapshotter"))
    return findings


def speaks_http2(path: str) -> int | None:
    """The process that answers at a socket as a gRPC server does; None where none does, or only listens."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(_ANSWERS_WITHIN)
            connection.connect(path)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            connection.sendall(_PREFACE)
            head = connection.recv(9, socket.MSG_WAITALL)
    except OSError:
        return None
    return int(struct.unpack("iII", credentials)[0]) if len(head) == 9 and head[3] == _SETTINGS else None


def runs_since(process: int) -> float:
    """Time at which a process was started, in seconds since 1970; 0.0 where it is not to be seen."""
    began = processes.began(process)
    if not began:
        return 0.0
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted + began / os.sysconf("SC_CLK_TCK")


def installed_at() -> float:
    """Time at which this version was installed, in seconds since 1970; 0.0 where that is not known."""
    try:
        files = metadata.distribution("bootseer").files or ()
        return max((Path(str(one.locate())).stat().st_mtime for one in files if one.name == "RECORD"), default=0.0)
    except (metadata.PackageNotFoundError, OSError):
        return 0.0


def _namespace(process: int) -> int:
    """The mount namespace of a process, 0 where that is not to be seen."""
    try:
        return os.stat(f"/proc/{process}/ns/mnt").st_ino
    except OSError:
        return 0


def _age(service: str, process: int, remedy: str) -> CheckResult:
    """Checks whether the service was started after the installed version was installed."""
    since = runs_since(process)
    if since and since < installed_at():
        return _old(service, f"the {service} was started before this version was installed", remedy)
    return CheckResult(f"{service}.version", "ok", f"the {service} runs what is installed")


def _old(service: str, found: str, remedy: str) -> CheckResult:
    return CheckResult(f"{service}.version", "warn", found, "it has the faults of its version", remedy)


class ContainerdFacts(NamedTuple):
    """Facts about a host's containerd.

    version: None where none is installed. config: its configuration with all defaults, as `containerd config dump`
    prints it, or the file as it is; None where neither can be had, and `trouble` says why. plugins: states of the
    snapshotters by name in the containerd that runs; None where none answers.
    """

    version: tuple[int, int, int] | None
    config: Mapping[str, Any] | None
    trouble: str = ""
    plugins: Mapping[str, str] | None = None


def containerd_facts(file: str) -> ContainerdFacts:
    """Ask containerd and ctr, where they are installed; else read the file. Raises nothing."""
    printed = _output("containerd", "--version")
    version = parse_version(printed) if printed is not None else None
    arguments = ["-c", file] if os.path.exists(file) else []
    dumped = _output("containerd", *arguments, "config", "dump") if version is not None else None
    try:
        config = tomllib.loads(Path(file).read_text() if dumped is None else dumped)
    except FileNotFoundError:
        return ContainerdFacts(version, None, f"{file} does not exist")
    except (OSError, ValueError) as error:
        return ContainerdFacts(version, None, f"{file} cannot be read: {error}")
    server = _table(config, _SERVER_PLUGIN) or config.get("grpc", {})
    address = str(server.get("address") or "/run/containerd/containerd.sock")
    asked = ("ctr", "--address", address, "plugins", "ls", 'type~="io.containerd.snapshotter.v1"')
    listed = _output(*asked) if os.path.exists(address) else None  # ctr waits for a socket to appear
    return ContainerdFacts(version, config, "", None if listed is None else _states(listed))


def judge_containerd(facts: ContainerdFacts, socket: str, root: str) -> list[CheckResult]:
    """The findings for a containerd that is to use the snapshotter with this socket and folder."""
    if facts.version is None and facts.config is None:
        return [
            CheckResult(
                "containerd.version",
                "warn",
                "containerd is not installed here",
                "images start by `imagefs run` and `imagefs mount` only",
                "apt-get install containerd, if Kubernetes, nerdctl or ctr are to start them",
            )
        ]
    findings = [_version(facts.version)]
    if facts.config is None:
        return [
            *findings,
            CheckResult("containerd.config", "fail", facts.trouble, "nothing is known of it", _CONFIGURE),
        ]
    if PLUGIN not in facts.config.get("proxy_plugins", {}):
        cost = "containerd pulls and unpacks whole images"
        return [*findings, CheckResult("containerd.plugin", "warn", f"no proxy plugin {PLUGIN}", cost, _CONFIGURE)]
    findings += [_plugin(facts.config, socket), *_rebase(facts.config, facts.version)]
    findings += _images(facts.config, facts.version)
    findings += [_room(facts.config, facts.version, root), _loaded(facts.plugins)]
    return findings


def uses_snapshotter(config: Mapping[str, Any]) -> bool:
    """Tells whether CRI starts containers by the snapshotter, all or those of a runtime handler."""
    old = _table(config, V1_CRI_PLUGIN, "containerd")
    images, new = _table(config, IMAGES_PLUGIN), _table(config, RUNTIME_PLUGIN, "containerd")
    handlers = [*old.get("runtimes", {}).values(), *new.get("runtimes", {}).values()]
    return PLUGIN in (old.get("snapshotter"), images.get("snapshotter"), *(one.get("snapshotter") for one in handlers))


def _version(version: tuple[int, int, int] | None) -> CheckResult:
    if version is None:
        return CheckResult("containerd.version", "warn", "containerd's program is not here, so only its file is read")
    told = ".".join(map(str, version))
    if version < _OLDEST:
        cost = "it passes too little on to snapshotters: whole images are pulled"
        return CheckResult("containerd.version", "fail", f"containerd {told}", cost, "take 1.6 or later")
    return CheckResult("containerd.version", "ok", f"containerd {told}")


def _plugin(config: Mapping[str, Any], socket: str) -> CheckResult:
    plugin = config["proxy_plugins"][PLUGIN]
    if plugin.get("type") != "snapshot" or plugin.get("address") != socket:
        found = f"the proxy plugin {PLUGIN} is a {plugin.get('type')!r} at {plugin.get('address')}, not at {socket}"
        return CheckResult("containerd.plugin", "fail", found, "containerd does not find the snapshotter", _CONFIGURE)
    return CheckResult("containerd.plugin", "ok", f"the proxy plugin {PLUGIN} leads to {socket}")


def _rebase(config: Mapping[str, Any], version: tuple[int, int, int] | None) -> list[CheckResult]:
    """The capability that lets containerd unpack layers in parallel, where only 2.4 and later knows of lazy ones."""
    declared = config["proxy_plugins"][PLUGIN].get("capabilities") or []
    if "rebase" not in declared or version is None or version >= _REBASE_SINCE:
        return []
    found = f"the proxy plugin {PLUGIN} has the capability rebase"
    cost = "pulls of lazy images fail where layers are unpacked in parallel"
    return [CheckResult("containerd.rebase", "fail", found, cost, "remove it, or take containerd 2.4 or later")]


def _images(config: Mapping[str, Any], version: tuple[int, int, int] | None) -> list[CheckResult]:
    """Checks that pulls name the image to the snapshotter, and which containers it is used for."""
    old, images = _table(config, V1_CRI_PLUGIN, "containerd"), _table(config, IMAGES_PLUGIN)
    settings = images or old
    findings = []
    cost = "the snapshotter is told no image, so every image is pulled and unpacked whole"
    if settings.get("disable_snapshot_annotations", True):
        found = "CRI passes no annotations on (disable_snapshot_annotations)"
        findings.append(
            CheckResult("containerd.annotations", "fail", found, cost, "set it to false, and restart containerd")
        )
    else:
        findings.append(CheckResult("containerd.annotations", "ok", "CRI tells the snapshotter which image it pulls"))
    if settings.get("discard_unpacked_layers"):
        found = "discard_unpacked_layers is set"
        lost = "an image that was pulled whole cannot be pushed, nor unpacked by another snapshotter"
        findings.append(CheckResult("containerd.layers", "warn", found, lost, "set it to false"))
    if uses_snapshotter(config):
        findings.append(CheckResult("containerd.snapshotter", "ok", f"CRI starts containers by {PLUGIN}"))
    else:
        found = f"no runtime of CRI has the snapshotter {PLUGIN}"
        lost = f"only clients that name it use it: nerdctl and ctr with --snapshotter {PLUGIN}"
        findings.append(CheckResult("containerd.snapshotter", "warn", found, lost, _CONFIGURE))
    if version is None or version >= _TRANSFER_SINCE:
        findings.extend(_transfer(config, required=version is not None))
    return findings


def _transfer(config: Mapping[str, Any], *, required: bool) -> list[CheckResult]:
    """The service by which containerd 2.1 and later pulls."""
    exports = config["proxy_plugins"][PLUGIN].get("exports", {})
    unpack = _table(config, TRANSFER_PLUGIN).get("unpack_config") or []
    missing = []
    if exports.get("enable_remote_snapshot_annotations") != "true":
        missing.append('enable_remote_snapshot_annotations = "true" among its exports')
    if not any(one.get("snapshotter") == PLUGIN for one in unpack):
        missing.append("an unpack_config of the transfer service")
    if not missing or not required:
        return []
    cost = "what the transfer service pulls is fetched and unpacked whole, or not at all"
    return [CheckResult("containerd.transfer", "fail", f"{PLUGIN} lacks {' and '.join(missing)}", cost, _CONFIGURE)]


def _room(config: Mapping[str, Any], version: tuple[int, int, int] | None, root: str) -> CheckResult:
    """The place where kubelet looks for the room of images: what the plugin exports, before 1.7.17 a folder of
    containerd."""
    cost = "kubelet cannot see how full the disk of images is: no eviction, no limits of ephemeral storage"
    if version is not None and version < _EXPORTS_SINCE:
        expected = os.path.join(
            str(config.get("root") or "/var/lib/containerd"), f"io.containerd.snapshotter.v1.{PLUGIN}"
        )
        if os.path.realpath(expected) == os.path.realpath(root):
            return CheckResult("containerd.room", "ok", f"kubelet finds {root}")
        return CheckResult("containerd.room", "warn", f"{expected} is not {root}", cost, f"ln -s {root} {expected}")
    exported = config["proxy_plugins"][PLUGIN].get("exports", {}).get("root")
    if exported == root:
        return CheckResult("containerd.room", "ok", f"kubelet is told {root}")
    return CheckResult(
        "containerd.room", "warn", f"the plugin exports the root {exported} and not {root}", cost, _CONFIGURE
    )


def _loaded(plugins: Mapping[str, str] | None) -> CheckResult:
    if plugins is None:
        cost, remedy = "nothing starts", "systemctl start containerd; journalctl -u containerd says more"
        return CheckResult("containerd.running", "warn", "no containerd answers", cost, remedy)
    state = plugins.get(PLUGIN)
    if state == "ok":
        return CheckResult("containerd.running", "ok", f"containerd runs with the plugin {PLUGIN}")
    found = f"the plugin {PLUGIN} is in the file, and " + (
        f"failed ({state})" if state else "not in the containerd that runs"
    )
    return CheckResult(
        "containerd.running", "fail", found, "containerd does not use it", "systemctl restart containerd"
    )


def _table(config: Mapping[str, Any], plugin: str, *names: str) -> Mapping[str, Any]:
    """A table of a plugin, empty where there is none."""
    table: Any = config.get("plugins", {}).get(plugin, {})
    for name in names:
        table = table.get(name, {})
    return dict(table)


def _states(listed: str) -> dict[str, str]:
    """State by id, of the columns TYPE ID PLATFORMS STATUS."""
    rows = [line.split() for line in listed.splitlines()[1:]]
    return {row[1]: row[-1] for row in rows if len(row) >= 4}


def _output(*command: str) -> str | None:
    """The standard output of a command; None where the command is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_CONTAINERD_ANSWERS_WITHIN)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
