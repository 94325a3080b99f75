"""Settings of the mount, tree, reader and store as plain values, which the command hands to them.

The command resolves flag > environment > TOML file > default into these; nothing below it reads configuration.
They travel from the supervisor to each worker as JSON (`to_json`, `from_json`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

from stripefs.errors import ConfigError
from stripefs.records import NamedTuple

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

__all__ = [
    "FETCH_PROCESS",
    "LAYOUTS",
    "PUBLISH_UNSEEN",
    "CacheSettings",
    "MountSettings",
    "ReadSettings",
    "Settings",
    "StoreSettings",
    "WriteSettings",
    "cache_settings",
    "default_budget",
    "default_write_memory",
    "known",
    "mount_settings",
    "redact",
    "store_settings",
    "write_settings",
]

MIB = 1 << 20
GIB = 1 << 30

LAYOUTS = ("concat", "striped", "plain")
"""Layout of a written file in the store."""

FETCH_PROCESS = ("auto", "on", "off")
"""Condition for a process that fetches blocks of HDFS for a mount; auto means SPARE_PROCESSORS or more."""

SPARE_PROCESSORS = 4
"""One for the program that reads, one for the mount, one for that process, and one for what else the machine does."""

PUBLISH_UNSEEN = ("always", "after-fsync", "never")
"""Rule for a close of a file whose writer's process this machine's mount cannot see."""

_HIDDEN = r"(?i)([?&][^=&]*(?:secret|token|password|signature|credential|key)[^=&]*=)[^&]*"
_USERINFO = r"(://[^/?@:]*):(?!\d+/)[^?]*@"
"""A password may hold any character, also those that end an authority; a port and a path with @ are no password."""


class StoreSettings(NamedTuple):
    """Access to a store. `transport` is auto, native, webhdfs or libhdfs and matters for hdfs:// only.

    fetch_process: True if blocks of HDFS are to be fetched by a process of its own. mirrors: URLs of HTTP servers that
    serve what never changes in the store, in the order in which they are asked, as `imagefs.blocks.upstream` has them.
    proxy: URL of the HTTP proxy by which a store of the web is reached, "" for that of the environment.
    """

    url: str = ""
    transport: str = "auto"
    hdfs_user: str = ""
    hadoop_conf: str = ""
    webhdfs_port: int = 0
    use_datanode_hostname: bool = False
    host_timeout: float = 5.0  # seconds without a byte before a data host counts as silent
    fetch_process: bool = False
    mirrors: tuple[str, ...] = ()
    proxy: str = ""


class ReadSettings(NamedTuple):
    """The reader's limits. Sizes in bytes, times in seconds. memory 0 means `default_budget()`."""

    memory: int = 0
    range_size: int = 8 * MIB
    threads: int = 32  # reads under way at once, all hosts together
    per_host: int = 3  # reads under way at once at one data host
    io_timeout: float = 90.0
    hedge: bool = True


class WriteSettings(NamedTuple):
    """Settings of writing, for a mount that can be written. Sizes in bytes, times in seconds.

    memory 0 means `default_write_memory()`. layout_for: (shell pattern, layout) in the order in which they are tried;
    see `layout_of`. staging: a local folder for files that are not written from start to end, "" for none. trust_pool:
    absolute paths in the store, beside the mount's own pool, whose parts a striped file may name. publish_unseen is one
    of PUBLISH_UNSEEN.
    """

    layout: str = "concat"
    layout_for: tuple[tuple[str, str], ...] = ()
    unit: int = 4 * MIB
    memory: int = 0
    staging: str = ""
    staging_size: int = 16 * GIB
    grace: float = 600.0  # seconds that a replaced striped version stays for those who have it open
    trust_pool: tuple[str, ...] = ()
    publish_unseen: str = "after-fsync"

    def layout_of(self, path: bytes) -> str:
        """The layout for a new file at `path`, absolute in the mount, when its directory names none.

        A pattern with a slash is held against the whole path, any other against the name. The first that fits decides.
        """
        import fnmatch  # only a mount that is written to needs it

        whole = os.fsdecode(path)
        for pattern, layout in self.layout_for:
            subject = whole if "/" in pattern else whole.rpartition("/")[2]
            if fnmatch.fnmatchcase(subject, pattern):
                return layout
        return self.layout


class CacheSettings(NamedTuple):
    """The cache on local disk of files that are read. size in bytes, 0 for a tenth of the file system there.

    directory: "" for no cache. writes: of files that are written, too. match: patterns of what is cached, none for all;
    see `stripefs.cache.policy`, also for keep_newest, the number of checkpoints that stay. trust_mtime: length and
    time make a version where the store has no ids.
    """

    directory: str = ""
    writes: bool = False
    size: int = 0
    match: tuple[str, ...] = ()
    keep_newest: int = 0
    trust_mtime: bool = False


class MountSettings(NamedTuple):
    """Settings of the tree that is shown. uid and gid -1 mean: those of the store's owner names, else of the mounting
    user."""

    mountpoint: str = ""
    rw: bool = False  # True if files can be written
    allow_other: bool = False
    attr_timeout: float = 1.0
    uid: int = -1
    gid: int = -1
    umask: int = 0
    read_ahead_kb: int = 16384
    max_background: int = 256  # see docs/architecture.md
    fetch_process: str = "auto"  # one of FETCH_PROCESS
    resend: bool = True  # False forces the fallback for kernels without FUSE_NOTIFY_RESEND
    options: tuple[str, ...] = ()  # further mount options: noexec, nosuid, nodev, context=…
    metrics: str = ""  # HOST:PORT on a loopback address, "" for none
    events: str = ""  # folder of start-up events, "" for that of BOOTSEER_EVENTS, if any
    log_format: str = "text"
    log_level: str = "info"
    log_file: str = ""  # "" is standard error in the foreground, syslog-less file in the state folder else

    @property
    def own_fetch_process(self) -> bool:
        """True if the store is to fetch in a process of its own."""
        if self.fetch_process == "auto":
            return len(os.sched_getaffinity(0)) >= SPARE_PROCESSORS
        return self.fetch_process == "on"


class Settings(NamedTuple):
    store: StoreSettings = StoreSettings()
    read: ReadSettings = ReadSettings()
    mount: MountSettings = MountSettings()
    write: WriteSettings = WriteSettings()
    cache: CacheSettings = CacheSettings()

    def to_json(self) -> str:
        return json.dumps({name: part._asdict() for name, part in self._asdict().items()})

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """The inverse of `to_json`; settings of another version are ignored. Raises ConfigError for anything else."""
        try:
            data: dict[str, Any] = json.loads(text)
            return cls(
                store_settings(data["store"]),
                ReadSettings(**known(ReadSettings, data["read"])),
                mount_settings(data["mount"]),
                write_settings(data.get("write", {})),  # a mount of an older version tells none
                cache_settings(data.get("cache", {})),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"settings are not readable: {error}") from error


def known(kind: type[NamedTuple], data: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of `data` that are fields of `kind`: another version may have written others."""
    return {name: value for name, value in data.items() if name in kind._fields}


def store_settings(data: Mapping[str, Any]) -> StoreSettings:
    """The inverse of `_asdict` for a StoreSettings, also after a way through JSON. Raises TypeError."""
    return StoreSettings(**{**known(StoreSettings, data), "mirrors": tuple(data.get("mirrors", ()))})


def mount_settings(data: Mapping[str, Any]) -> MountSettings:
    """The inverse of `_asdict` for a MountSettings, also after a way through JSON. Raises KeyError, TypeError."""
    return MountSettings(**{**known(MountSettings, data), "options": tuple(data["options"])})


def write_settings(data: Mapping[str, Any]) -> WriteSettings:
    """The inverse of `_asdict` for a WriteSettings, also after JSON. Raises ValueError, TypeError."""
    patterns = tuple((pattern, layout) for pattern, layout in data.get("layout_for", ()))
    pools = tuple(data.get("trust_pool", ()))
    return WriteSettings(**{**known(WriteSettings, data), "layout_for": patterns, "trust_pool": pools})


def cache_settings(data: Mapping[str, Any]) -> CacheSettings:
    """The inverse of `_asdict` for a CacheSettings, also after JSON. Raises TypeError."""
    return CacheSettings(**{**known(CacheSettings, data), "match": tuple(data.get("match", ()))})


def redact(url: str) -> str:
    """`url` with passwords and the values of secret-looking parameters as `***`, fit for logs and messages."""
    return re.sub(_HIDDEN, r"\1***", re.sub(_USERINFO, r"\1:***@", url))


def default_budget() -> int:
    """min(1 GiB, an eighth of the memory that this process may use), in bytes, at least 64 MiB.

    The limit is the smaller of physical memory and the memory limits of the cgroups (v1 and v2) that hold us.
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(64 * MIB, min(GIB, min([total, *_cgroup_limits()]) // 8))


def default_write_memory() -> int:
    """Half of `default_budget()`, in bytes: reading and writing together take less than a fifth of the memory."""
    return default_budget() // 2


def _cgroup_limits() -> list[int]:
    from pathlib import Path  # most commands have no budget to work out

    limits = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            roots, leaf = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"], "memory.max"
        elif "memory" in controllers.split(","):
            roots, leaf = ["/sys/fs/cgroup/memory"], "memory.limit_in_bytes"
        else:
            continue
        for root in roots:
            # A limit on any ancestor binds; inside a container the path may not exist and the root is our own.
            folder = Path(root + path)
            for candidate in [folder, *folder.parents]:
                if not candidate.is_relative_to(root):
                    break
                limits += _limit(candidate / leaf)
    return limits


def _limit(file: Path) -> list[int]:
    try:
        text = file.read_text().strip()
    except OSError:
        return []
    return [int(text)] if text.isdigit() and int(text) > 0 else []
