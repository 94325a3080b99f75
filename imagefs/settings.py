"""Settings and options as plain values: of the daemon, the snapshotter, a build, and the tree of an image.

The command resolves flag > environment > TOML file > default into these (`imagefs.config`); nothing below it reads
configuration. Those of the daemon travel to it and from there to each of its workers as JSON (`to_json`, `from_json`).
Access to a store is `stripefs.settings.StoreSettings`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from stripefs.errors import ConfigError
from stripefs.osutil import user_runtime
from stripefs.records import NamedTuple
from stripefs.settings import known

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from typing import Literal

__all__ = [
    "AUTO",
    "Compression",
    "DaemonSettings",
    "LayerLimits",
    "SnapshotterSettings",
    "TreeOptions",
    "client_marker",
    "default_cache",
    "default_runtime",
    "devices_mount",
    "ready_folder",
]

MIB = 1 << 20


def default_cache(environ: Mapping[str, str] | None = None) -> str:
    """The folder of what was fetched: /var/cache/bootseer/imagefs for root, else one below ~/.cache."""
    environ = os.environ if environ is None else environ
    if os.geteuid() == 0:
        return "/var/cache/bootseer/imagefs"
    base = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    return os.path.join(base, "bootseer/imagefs")


def default_runtime(environ: Mapping[str, str] | None = None) -> str:
    """The folder of the socket and the mount of the devices: /run/bootseer for root, else one of the user's own."""
    environ = os.environ if environ is None else environ
    if (base := user_runtime(environ, os.geteuid())) is not None:
        return os.path.join(base, "bootseer")
    if os.geteuid() == 0:
        return "/run/bootseer"
    # Right below /tmp, whose sticky bit keeps others from swapping it; owner and mode are checked before use.
    return f"/tmp/bootseer-{os.geteuid()}"  # noqa: S108


def ready_folder(runtime: str, identifier: str) -> str:
    """The folder in which clients note that the job of a container has started. identifier: of the attachment."""
    return os.path.join(runtime, "imagefs/ready", identifier)


def client_marker(runtime: str, identifier: str) -> str:
    """The file by which `imagefs run` tells the daemon so, where nobody names another one."""
    return os.path.join(ready_folder(runtime, identifier), "ready")


class Compression(NamedTuple):
    """The compression of an image's blocks. codec: "lz4", "zstd", or "auto" for the one by which blocks are there
    sooner over a link of `link_rate` bytes a second, 0 for one that never binds (`imagefs.format.codec`). The default
    rate is that of the daemon's background."""

    codec: str = "auto"
    link_rate: int = 100_000_000


AUTO = Compression()


class DaemonSettings(NamedTuple):
    """The service of one host. Sizes in bytes, times in seconds, rates in bytes a second.

    cache_size 0 means half of what is free on the cache's file system when the daemon starts; cache_age 0 means that
    nothing goes for want of use; background_rate 0 means that nothing is fetched in the background. Its default is a
    tenth of a link of 10 Gbit/s: an image of 10 GB is local after 100 seconds. compression: of images that are made on
    this host, by commands, for snapshots and in the background.
    """

    cache: str = default_cache()
    runtime: str = default_runtime()
    cache_size: int = 0
    cache_age: float = 30 * 86400.0
    memory: int = 64 * MIB  # blocks that are held, and replies under way
    io_timeout: float = 90.0
    fetches: int = 8  # ranges under way at once, when prefetching
    background_rate: int = 100_000_000
    record_seconds: float = 120.0
    read_ahead_kb: int = 1024
    max_background: int = 64
    metrics: str = ""  # HOST:PORT on a loopback address, "" for none
    log_format: str = "text"
    log_level: str = "info"
    log_file: str = ""  # "" is standard error in the foreground, a file in the runtime folder else
    events: str = ""  # folder of start-up events, also of the snapshotter's, "" for none
    compression: Compression = AUTO

    @property
    def socket(self) -> str:
        """The socket on which the daemon answers."""
        return os.path.join(self.runtime, "imagefs.sock")

    @property
    def devices(self) -> str:
        """The directory in which the daemon shows one file per device."""
        return os.path.join(self.runtime, "imagefs/devices")

    def to_json(self) -> str:
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> DaemonSettings:
        """The inverse of `to_json`; settings of another version are ignored. Raises ConfigError for anything else."""
        try:
            found = cls(**known(cls, json.loads(text)))
            return found._replace(compression=Compression(*found.compression))
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"settings are not readable: {error}") from error


class SnapshotterSettings(NamedTuple):
    """socket: where it listens. root: its folder. stores: URLs, the preferred first. metrics: HOST:PORT or "".

    registries: whether the registry of an image that is pulled is asked for a lazy one. plain_http: registries, as
    HOST[:PORT], that speak plain http.
    """

    socket: str = ""
    root: str = "/var/lib/bootseer/snapshotter"
    stores: tuple[str, ...] = ()
    registries: bool = True
    plain_http: tuple[str, ...] = ()
    metrics: str = ""


def devices_mount(settings: DaemonSettings) -> str:
    """`settings.devices` as the kernel spells it. The mount itself is not asked: its worker may not answer."""
    parent, name = os.path.split(settings.devices)
    return os.path.join(os.path.realpath(parent), name)


class LayerLimits(NamedTuple):
    """layers: of one image. entries: names in all layers together, each of which takes about 1.5 KB of memory.
    attribute_bytes: of attributes, links' targets and maps of holes in all layers together. tree_bytes: of the files in
    all layers together, holes among them. layer_bytes: of one layer, unpacked. ratio: unpacked over packed bytes of all
    layers so far, once they have unpacked to more than 1 GiB (zeros packed by gzip reach 1000, text 10). path_bytes: of
    one name with its directories, as the kernel has it. header_bytes: of one entry's extended headers."""

    layers: int = 1000
    entries: int = 2_000_000
    attribute_bytes: int = 256 << 20
    tree_bytes: int = 1 << 40
    layer_bytes: int = 1 << 40
    ratio: int = 200
    path_bytes: int = 4096
    header_bytes: int = 1 << 20


class TreeOptions(NamedTuple):
    """Options by which an image becomes a tree. rw: an overlay on top. backing: what the kernel's EROFS mounts.
    confined: nosuid and nodev. unpack: a container has a copy of the whole tree on local disk, which is made before it
    starts."""

    rw: bool = False
    plane: Literal["auto", "erofs", "tree"] = "auto"
    backing: Literal["auto", "file", "loop"] = "auto"
    confined: bool = False
    unpack: bool = False

    @property
    def shares(self) -> bool:
        """True when its EROFS mount may be a copy of another's: only root can make one, and a loop device is nobody
        else's."""
        return os.geteuid() == 0 and self.plane != "tree" and self.backing != "loop"
