"""containerd: its version, and whether its configuration leads to the snapshotter and tells it what it must know."""

from __future__ import annotations

import os
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from imagefs.doctor.finding import CheckResult
from imagefs.snapshotter.containerd_config import (
    IMAGES_PLUGIN,
    PLUGIN,
    RUNTIME_PLUGIN,
    TRANSFER_PLUGIN,
    V1_CRI_PLUGIN,
    parse_version,
)

__all__ = ["ContainerdFacts", "containerd_findings", "gather", "judge", "uses_us"]

_ANSWERS_WITHIN = 30.0
_OLDEST = (1, 6, 0)
_EXPORTS_SINCE = (1, 7, 17)
_TRANSFER_SINCE = (2, 1, 0)
_REBASE_SINCE = (2, 4, 0)
_SERVER_PLUGIN = "io.containerd.server.v1.grpc"
"""Has the socket's address in a configuration of version 4, which containerd 2.3 and later print."""

_CONFIGURE = "`imagefs snapshotter config` prints the block for /etc/containerd/config.toml; then restart containerd"


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


def containerd_findings(file: str, socket: str, root: str) -> list[CheckResult]:
    """file: containerd's configuration. socket, root: of the snapshotter."""
    return judge(gather(file), socket, root)


def gather(file: str) -> ContainerdFacts:
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


def judge(facts: ContainerdFacts, socket: str, root: str) -> list[CheckResult]:
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


def uses_us(config: Mapping[str, Any]) -> bool:
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
    if uses_us(config):
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
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWERS_WITHIN)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
