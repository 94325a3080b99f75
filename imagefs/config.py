"""Every option of imagefs, declared once, and how the settings come from what was given.

`IMAGEFS` is the one declaration, made of the parts in `stripefs.options` and the parsers of `stripefs.parsers`: flags,
`IMAGEFS_*` variables, TOML keys, `--help` and docs/reference all come from it. `resolve` turns what was given into
`Settings`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from imagefs.reference import parse_store
from imagefs.settings import (
    Compression,
    DaemonSettings,
    LayerLimits,
    SnapshotterSettings,
    default_cache,
    default_runtime,
)
from stripefs.config import LOG, STORE
from stripefs.errors import ConfigError
from stripefs.options import Given, Option, Options
from stripefs.parsers import (
    choice,
    count,
    duration,
    kib,
    loopback,
    parse_bool,
    rate,
    size,
    some_file,
    some_folder,
    store_urls,
    text,
)
from stripefs.records import NamedTuple
from stripefs.settings import StoreSettings, redact

__all__ = ["IMAGEFS", "DepsSettings", "Settings", "resolve"]

_MIB = 1 << 20
_MIRROR = r"https?://[^/?#,]+(/[^?#,]*)?|proxy\+https?://[^/?#,]+"
_REGISTRY = r"([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(:\d+)?"
_BY_HTTP = ("http", "https", "oci")
_CODECS = ("auto", "lz4", "zstd")
_LOG_FILE = "standard error with -f, else imagefs.log in the runtime folder"


def mirrors(given: str) -> tuple[str, ...]:
    """A parser of URLs of mirrors and proxies, with commas between them, in the order in which they are asked."""
    found = tuple(one.rstrip("/") for one in filter(None, map(str.strip, given.split(","))))
    for one in found:
        if not re.fullmatch(_MIRROR, one):
            raise ConfigError(
                f"{redact(one)!r} is no mirror", hint="write http://HOST:PORT/PATH, or proxy+http://HOST:PORT"
            )
    return found


def registries(given: str) -> tuple[str, ...]:
    """A parser of registries, HOST or HOST:PORT, with commas between them."""
    found = tuple(filter(None, map(str.strip, given.split(","))))
    for one in found:
        if not re.fullmatch(_REGISTRY, one):
            raise ConfigError(f"{redact(one)!r} is no registry", hint="write HOST or HOST:PORT")
    return found


IMAGEFS = Options("imagefs", {"store": "The store", "daemon": "The service", "build": "Building",
                              "deps": "Dependency snapshots", "snapshotter": "The snapshotter",
                              "services": "Both services"}, (
    *STORE,
    Option("store", "mirror", mirrors, "", "Fetch from this HTTP mirror or proxy while it is well; may be given again.",
           "URL", "mirrors", shown="none", many=True),
    Option("daemon", "cache", some_folder, "", "Folder for fetched data.", "DIR",
           shown="/var/cache/bootseer/imagefs for root, ~/.cache/bootseer/imagefs for others"),
    Option("daemon", "runtime", some_folder, "", "Folder of the socket and of the devices.", "DIR",
           shown="/run/bootseer for root, $XDG_RUNTIME_DIR/bootseer for others"),
    Option("daemon", "cache-size", size(64 * _MIB, 1 << 60, auto=0), "auto", "Most bytes kept on disk.", "SIZE",
           shown="half of what is free there"),
    Option("daemon", "cache-age", duration(0, 3650 * 86400), "30d",
           "Time after its last use at which data leave the cache; 0 for never.", "TIME", "cache_age"),
    Option("daemon", "memory", size(16 * _MIB, 1 << 50), "64MiB", "Most memory for blocks on their way.", "SIZE"),
    Option("daemon", "io-timeout", duration(1, 86400), "90s",
           "A read that took this long answers EIO; a build to which nothing came ends.", "TIME"),
    Option("daemon", "fetches", count(1, 1024), "8", "Ranges under way at once when prefetching.", "N"),
    Option("daemon", "background-rate", rate(1 << 50), "100MB/s",
           "Speed at which the rest of an image comes when its job is ready; 0 for not at all.", "RATE"),
    Option("daemon", "record-seconds", duration(0, 86400), "120s", "Longest time that a start is recorded.", "TIME"),
    Option("daemon", "read-ahead", kib, "1MiB", "The kernel's own read-ahead.", "SIZE", "read_ahead_kb"),
    Option("daemon", "max-background", count(1, 65535), "64", "Requests the kernel may have under way.", "N"),
    Option("daemon", "metrics", loopback, "", "Serve Prometheus metrics here; loopback only.", "HOST:PORT",
           shown="none"),
    *(option._replace(section="daemon", shown=_LOG_FILE if option.name == "log-file" else "")
      for option in LOG),
    Option("build", "tmp", some_folder, "", "Folder for unpacked layers while an image is built.", "DIR",
           shown="build in the cache folder"),
    Option("build", "max-layers", count(1, 1 << 20), "1000", "Most layers of an image.", "N", "layers"),
    Option("build", "max-entries", count(1, 1 << 40), "2000000", "Most names in all layers together.", "N",
           "entries"),
    Option("build", "max-attributes", size(1, 1 << 40), "256MiB",
           "Most bytes of attributes, links and maps of holes in all layers together.", "SIZE", "attribute_bytes"),
    Option("build", "max-size", size(1, 1 << 60), "1TiB", "Most bytes of files in all layers together.", "SIZE",
           "tree_bytes"),
    Option("build", "max-layer-size", size(1, 1 << 60), "1TiB", "Most bytes of one layer, unpacked.", "SIZE",
           "layer_bytes"),
    Option("build", "max-ratio", count(1, 1 << 40), "200",
           "Most unpacked bytes for one packed byte, of layers beyond 1 GiB.", "N", "ratio"),
    Option("build", "max-path", size(1, 4096), "4096", "Most bytes of a name with its directories.", "SIZE",
           "path_bytes"),
    Option("build", "max-headers", size(512, 1 << 40), "1MiB", "Most bytes of extended headers of one entry.", "SIZE",
           "header_bytes"),
    Option("build", "compression", choice(*_CODECS), "auto",
           "Codec of an image's blocks; auto samples them. Version 0.1.0 reads only lz4.", "CODEC", "codec",
           choices=_CODECS),
    Option("build", "link-rate", rate(1 << 50), "100MB/s",
           "Speed at which hosts read the store, by which auto chooses; 0 for one that never binds.", "RATE",
           "link_rate"),
    Option("deps", "store", text, "", "Store of dependency snapshots.", "STORE", shown="none"),
    Option("deps", "resolve-age", duration(0, 30 * 86400),  "1h",
           "Time for which the answer of a package index is believed.", "TIME", "resolve_age"),
    Option("deps", "wait-lease", duration(0, 86400), "10m",
           "Time to wait for another host that installs the same; 0 for not at all.", "TIME", "patience"),
    Option("snapshotter", "socket", some_file, "", "Socket at which containerd finds the snapshotter.", "PATH",
           shown="snapshotter.sock in the runtime folder"),
    Option("snapshotter", "root", some_folder, "/var/lib/bootseer/snapshotter",
           "Folder of files that containers write and of layers that no store has.", "DIR"),
    Option("snapshotter", "stores", store_urls, "", "Stores that are searched for images, in order.", "STORE",
           shown="none", many=True),
    Option("snapshotter", "registries", parse_bool, "true",
           "Look for a lazy image in the registry of an image that no store has."),
    Option("snapshotter", "plain-http", registries, "",
           "Speak plain http with this registry, as with those on this machine; may be given again.", "HOST:PORT",
           "plain_http", shown="none", many=True),
    Option("snapshotter", "snapshotter-metrics", loopback, "", "Serve the snapshotter's metrics here; loopback only.",
           "HOST:PORT", "metrics", shown="none"),
    Option("services", "events", some_folder, "", "Write start-up events of this host into this local folder.", "DIR",
           shown="none"),
), keyed=["mirror"])  # fmt: skip


class DepsSettings(NamedTuple):
    """store: of dependency snapshots, "" for none. patience: seconds to wait for another host that installs.
    resolve_age: seconds for which what requirements were resolved to is believed."""

    store: str = ""
    patience: float = 600.0
    resolve_age: float = 3600.0


class Settings(NamedTuple):
    """All that can be set. tmp: folder for unpacked layers, absolute. limits: what a layer may ask for. asked: options
    by the settings of the daemon that somebody chose. mirrors: those of each store by its URL, "" for all others.
    """

    store: StoreSettings
    daemon: DaemonSettings
    limits: LayerLimits
    tmp: str
    deps: DepsSettings
    snapshotter: SnapshotterSettings
    asked: Mapping[str, str] = {}
    mirrors: Mapping[str, tuple[str, ...]] = {}

    def store_at(self, url: str) -> StoreSettings:
        """Access to the store at `url`; its mirrors are those that files name. Raises ConfigError."""
        return _mirrored(self.store._replace(url=url), self.mirrors)

    @property
    def snapshots(self) -> StoreSettings:
        """The store of snapshots, that of images unless another one is named. Raises ConfigError."""
        return self.store_at(parse_store(self.deps.store)) if self.deps.store else self.store


def resolve(given: Given, *, url: str = "", config: str = "", environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from what the command line gave, the environment, the files and the defaults, in that order.

    given: by option name, from flags. url: the store. config: the one file to read instead of the usual ones ("" for
    those; IMAGEFS_CONFIG also names it). environ: the process's own unless given. Raises ConfigError, which names the
    place a bad value came from.
    """
    environ = os.environ if environ is None else environ
    files = IMAGEFS.files(environ)
    values = IMAGEFS.values(given, environ, files, config)
    chosen = values["daemon"].keys()
    asked = {one.attribute: one.name for one in IMAGEFS.all if one.section == "daemon" and one.attribute in chosen}
    for name, default in (("cache", default_cache), ("runtime", default_runtime)):
        values["daemon"][name] = values["daemon"].get(name) or default()  # which depends on who asks
    compression = {name: values["build"].pop(name) for name in Compression._fields if name in values["build"]}
    daemon = DaemonSettings(**values["daemon"], **values["services"], compression=Compression(**compression))
    snapshotter = values["snapshotter"]
    snapshotter["socket"] = snapshotter.get("socket") or os.path.join(daemon.runtime, "snapshotter.sock")
    tmp = values["build"].pop("tmp", "") or os.path.join(daemon.cache, "build")
    tables = IMAGEFS.tables("store", environ, files, config)
    named = {key: table["mirrors"] for key, table in tables.items()}
    store = StoreSettings(url=url, **values["store"])
    chosen_here = "mirror" in given or environ.get("IMAGEFS_MIRROR")  # for whatever store the command names
    named = {**({} if chosen_here else named), "": store.mirrors}
    return Settings(
        _mirrored(store, named),
        daemon,
        LayerLimits(**values["build"]),
        tmp,
        DepsSettings(**values["deps"]),
        SnapshotterSettings(**values["snapshotter"]),
        asked,
        named,
    )


def _mirrored(store: StoreSettings, named: Mapping[str, tuple[str, ...]]) -> StoreSettings:
    """`store` with its own of the mirrors. Those of a store above it serve it too, at the same place below them."""
    place = store.url.partition("?")[0].rstrip("/")
    above = [key for key in named if key and f"{place}/".startswith(f"{key.partition('?')[0].rstrip('/')}/")]
    key = max(above, key=len, default="")
    scheme = place.partition("://")[0].rpartition("+")[2]
    rest = place[len(key.partition("?")[0].rstrip("/")) :] if key and scheme != "oci" else ""
    found = tuple(one if one.startswith("proxy+") else one + rest for one in named.get(key, ()))
    if place and scheme not in _BY_HTTP and any(one.startswith("proxy+") for one in found):
        raise ConfigError(
            f"{redact(store.url)} is not fetched by HTTP, so no proxy can fetch it",
            hint="name mirrors that serve its files",
        )
    return store._replace(mirrors=found)
