"""containerd's configuration for this snapshotter: the block of TOML that users put into theirs.

Two forms of the configuration exist. containerd 1.6 and 1.7 read version 2, with one plugin for all of CRI. containerd
2.x reads version 3, splits CRI in two plugins and pulls through its transfer service, which passes the annotations of
an image on to a snapshotter and unpacks with it only where both are configured.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

__all__ = [
    "IMAGES_PLUGIN",
    "PLUGIN",
    "ROOT",
    "RUNTIME_PLUGIN",
    "SOCKET",
    "TRANSFER_PLUGIN",
    "V1_CRI_PLUGIN",
    "Wanted",
    "containerd_config",
    "parse_version",
]

PLUGIN = "imagefs"
"""Name of the proxy plugin, of the snapshotter in every client, and of the runtime handler of a RuntimeClass."""

SOCKET = "/run/bootseer/snapshotter.sock"
ROOT = "/var/lib/bootseer/snapshotter"

V1_CRI_PLUGIN = "io.containerd.grpc.v1.cri"
IMAGES_PLUGIN = "io.containerd.cri.v1.images"
RUNTIME_PLUGIN = "io.containerd.cri.v1.runtime"
TRANSFER_PLUGIN = "io.containerd.transfer.v1.local"

_VERSION = re.compile(r"\bv?(\d+)\.(\d+)\.(\d+)")


class Wanted(NamedTuple):
    """The wanted effect of the configuration.

    socket, root: of the snapshotter. platform: OS/ARCHITECTURE in containerd's words. runtime_class: only pods whose
    RuntimeClass names the handler use the snapshotter, all others what they used before. systemd_cgroup: that handler's
    containers get their cgroups from systemd, as kubelet must be set as well.
    """

    socket: str = SOCKET
    root: str = ROOT
    platform: str = "linux/amd64"
    runtime_class: bool = False
    systemd_cgroup: bool = True


def parse_version(text: str) -> tuple[int, int, int] | None:
    """Major, minor and patch in what `containerd --version` prints, None where there is no version in it."""
    found = _VERSION.search(text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def containerd_config(major: int, wanted: Wanted = Wanted()) -> str:  # noqa: B008  immutable
    """The block for containerd 1.x (from 1.6 on; with `runtime_class` from 1.7 on) or 2.x, by its major version."""
    return _version_2(wanted) if major < 2 else _version_3(wanted)


def _version_2(wanted: Wanted) -> str:
    cri = f'plugins."{V1_CRI_PLUGIN}".containerd'
    chosen: dict[str, str | bool] = {} if wanted.runtime_class else {"snapshotter": PLUGIN}
    handlers: list[str] = []
    if wanted.runtime_class:
        # containerd 1.x forgets its own handler, the default, where a file has others.
        handlers = [
            *_handler(f"{cri}.runtimes.runc", wanted, {}),
            *_handler(f"{cri}.runtimes.{PLUGIN}", wanted, {"snapshotter": PLUGIN}),
        ]
    tables = [*_proxy_plugin(wanted, {}), _table(cri, {**chosen, **_ANNOTATED}), *handlers]
    return "\n\n".join([_HEAD.format(versions="1.6 and 1.7"), "version = 2", *tables]) + "\n"


def _version_3(wanted: Wanted) -> str:
    images = f'plugins."{IMAGES_PLUGIN}"'
    by_platform: dict[str, str | bool] = {"platform": wanted.platform, "snapshotter": PLUGIN}
    handler: list[str] = []
    if wanted.runtime_class:
        handler = [
            _table(f"{images}.runtime_platforms.{PLUGIN}", by_platform),
            *_handler(f'plugins."{RUNTIME_PLUGIN}".containerd.runtimes.{PLUGIN}', wanted, {"snapshotter": PLUGIN}),
        ]
    chosen: dict[str, str | bool] = {} if wanted.runtime_class else {"snapshotter": PLUGIN}
    unpack = f'[plugins."{TRANSFER_PLUGIN}".unpack_config]'
    tables = [
        *_proxy_plugin(wanted, {"enable_remote_snapshot_annotations": "true"}),
        _table(images, {**chosen, **_ANNOTATED}),
        *handler,
        _table(unpack, by_platform),
        _table(unpack, {**by_platform, "snapshotter": "overlayfs"}),  # the list stands in place of the default
    ]
    return "\n\n".join([_HEAD.format(versions="2.x"), "version = 3", *tables]) + "\n"


_HEAD = (
    "# imagefs as a snapshotter of containerd {versions}, for /etc/containerd/config.toml.\n"
    "# A table that your file has already must not come twice: add the lines below to it."
)

_ANNOTATED: dict[str, str | bool] = {"disable_snapshot_annotations": False, "discard_unpacked_layers": False}
"""CRI names image and layer to the snapshotter, and keeps the layers that were fetched, which others may unpack."""


def _proxy_plugin(wanted: Wanted, exports: dict[str, str | bool]) -> list[str]:
    """The plugin. CRI tells kubelet the exported `root` (from 1.7.17 on), whose room kubelet's evictions go by."""
    return [
        _table(f"proxy_plugins.{PLUGIN}", {"type": "snapshot", "address": wanted.socket}),
        _table(f"proxy_plugins.{PLUGIN}.exports", {"root": wanted.root, **exports}),
    ]


def _handler(path: str, wanted: Wanted, more: dict[str, str | bool]) -> list[str]:
    """A runtime handler, as RuntimeClasses name it, for runc."""
    return [
        _table(path, {"runtime_type": "io.containerd.runc.v2", **more}),
        _table(f"{path}.options", {"SystemdCgroup": wanted.systemd_cgroup}),
    ]


def _table(path: str, values: dict[str, str | bool]) -> str:
    """A table of TOML. JSON's strings and booleans are written as TOML's are."""
    return "\n".join([f"[{path}]", *(f"  {key} = {json.dumps(value)}" for key, value in values.items())])
