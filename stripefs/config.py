"""Every option of stripefs, declared once, and how the settings come from what was given.

`OPTIONS` is the one declaration, made of the parts in `stripefs.options` and the parsers of `stripefs.parsers`: flags,
`STRIPEFS_*` variables, TOML keys, `-o` words, `--help` and docs/reference all come from it. `resolve` turns what was
given into `Settings`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from stripefs.options import Given, Option, Options
from stripefs.parsers import (
    by_pattern,
    choice,
    count,
    duration,
    existing_folder,
    kib,
    loopback,
    new_file,
    parse_bool,
    patterns,
    power_of_two,
    size,
    some_folder,
    store_paths,
    text,
)
from stripefs.settings import FETCH_PROCESS, GIB, LAYOUTS, MIB, PUBLISH_UNSEEN, Settings

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from typing import Any

__all__ = ["LOG", "OPTIONS", "STORE", "STRIPEFS", "Given", "Option", "by_name", "config_files", "nearest", "resolve"]

_TRANSPORTS = ("auto", "native", "webhdfs", "libhdfs")
_LOG_LEVELS = ("debug", "info", "warning", "error")
_MOST_ID = (1 << 32) - 2

STORE: tuple[Option, ...] = (
    Option("store", "hdfs-transport", choice(*_TRANSPORTS), "auto", "Client that reads HDFS.", "NAME", "transport",
           choices=_TRANSPORTS),
    Option("store", "hdfs-user", text, "", "The user HDFS sees.", "NAME",
           shown="HADOOP_USER_NAME, else the login name"),
    Option("store", "hadoop-conf", existing_folder, "", "Folder of core-site.xml and hdfs-site.xml: HA names, ports.",
           "DIR", shown="HADOOP_CONF_DIR"),
    Option("store", "webhdfs-port", count(1, 65535, "auto"), "auto", "The NameNode's http port.", "PORT",
           shown="hdfs-site, else 9870"),
    Option("store", "use-datanode-hostname", parse_bool, "false",
           "Reach DataNodes by name instead of the address they registered."),
    Option("store", "host-timeout", duration(0.1, 3600), "5s", "A data host silent this long counts as failed.",
           "TIME"),
)  # fmt: skip
"""Access to a store: the same options for every command that uses one."""

LOG: tuple[Option, ...] = (
    Option("mount", "log-format", choice("text", "json"), "text", "Form of log lines.", "text|json",
           choices=("text", "json")),
    Option("mount", "log-level", choice(*_LOG_LEVELS), "info", "Least level that is logged.", "LEVEL",
           choices=_LOG_LEVELS),
    Option("mount", "log-file", new_file, "", "Log to this file.", "FILE",
           shown="standard error with -f, else the mount's state folder"),
)  # fmt: skip

_TITLES = {
    "store": "The store",
    "read": "Reading",
    "write": "Writing",
    "cache": "The cache on local disk",
    "mount": "The mount",
}

STRIPEFS = Options("stripefs", _TITLES, (
    *STORE,
    Option("read", "memory", size(64 * MIB, 1 << 50, auto=0), "auto", "Most memory for data of this mount.", "SIZE",
           shown="an eighth of the memory, at most 1 GiB"),
    Option("read", "range-size", size(256 << 10, GIB), "8MiB", "Size of one read from a data host.", "SIZE"),
    Option("read", "threads", count(1, 1024), "32", "Reads under way at once, all data hosts together.", "N"),
    Option("read", "per-host", count(1, 1024), "3", "Reads under way at once at one data host.", "N"),
    Option("read", "io-timeout", duration(1, 86400), "90s", "A read that took this long answers EIO.", "TIME"),
    Option("read", "hedge", parse_bool, "true", "Ask another replica when a read lags behind the others."),
    Option("write", "layout", choice(*LAYOUTS), "concat", "Layout of new files in the store.", "NAME", choices=LAYOUTS),
    Option("write", "layout-for", by_pattern(*LAYOUTS), "", "Another layout for these files; may be given again.",
           "PATTERN=LAYOUT", shown="none", many=True),
    Option("write", "unit", power_of_two(MIB, 64 * MIB), "4MiB",
           "Bytes of a striped file that lie together at one data host.", "SIZE"),
    Option("write", "write-memory", size(32 * MIB, 1 << 50, auto=0), "auto",
           "Most memory for data on its way to the store.", "SIZE", "memory",
           shown="a sixteenth of the memory, at most 512 MiB"),
    Option("write", "staging", existing_folder, "", "Local folder for files not written from start to end.", "DIR",
           shown="none: such writes are refused"),
    Option("write", "staging-size", size(MIB, 1 << 50), "16GiB", "Most room taken in that folder.", "SIZE"),
    Option("write", "grace", duration(0, 365 * 86400), "10m",
           "Time for which a replaced striped file stays for its readers.", "TIME"),
    Option("write", "publish-unseen", choice(*PUBLISH_UNSEEN), "after-fsync",
           "Condition under which closing publishes a file whose writer's PID namespace is not seen.", "WHEN",
           choices=PUBLISH_UNSEEN),
    Option("write", "trust-pool", store_paths, "",
           "Other pools of the same service whose parts striped files may name.", "PATH,PATH",
           shown="the mount's own", many=True),
    Option("cache", "cache", some_folder, "", "Keep read blocks in this local folder, shared by all mounts.", "DIR",
           "directory", shown="none: nothing is kept"),
    Option("cache", "cache-writes", parse_bool, "false", "Keep written files, too.", field="writes"),
    Option("cache", "cache-size", size(64 * MIB, 1 << 60, auto=0), "auto", "Most room taken in that folder.", "SIZE",
           "size", shown="a tenth of the file system"),
    Option("cache", "cache-match", patterns, "", "Keep these files alone; may be given again.", "PATTERN,PATTERN",
           "match", shown="all of 1 MiB and more", many=True),
    Option("cache", "keep-newest", count(0, 1 << 20), "0", "Of the checkpoints that match, so many never make room.",
           "N"),
    Option("cache", "cache-trust-mtime", parse_bool, "false",
           "Tell versions by length and time where the store has no ids.", field="trust_mtime"),
    Option("mount", "rw", parse_bool, "false", "Let files be written.", opposite="ro"),
    Option("mount", "allow-other", parse_bool, "false", "Let other users in; they act as the mount's user.",
           shown="on for root, else off"),
    Option("mount", "attr-timeout", duration(0, 86400), "1s", "Time for which names and attributes may be out of date.",
           "TIME"),
    Option("mount", "uid", count(0, _MOST_ID, "owner", -1), "owner", "Show all files as owned by this user id.", "ID",
           shown="the owner in the store"),
    Option("mount", "gid", count(0, _MOST_ID, "owner", -1), "owner", "Show all files with this group id.", "ID",
           shown="the group in the store"),
    Option("mount", "umask", count(0, 0o777, base=8), "000", "Permission bits to take away, octal.", "MASK"),
    Option("mount", "read-ahead", kib, "16MiB", "The kernel's own read-ahead.", "SIZE", "read_ahead_kb"),
    Option("mount", "max-background", count(1, 65535), "256", "Requests the kernel may have under way.", "N"),
    Option("mount", "fetch-process", choice(*FETCH_PROCESS), "auto",
           "Fetch blocks of HDFS in a process of its own.", "WHEN", choices=FETCH_PROCESS,
           shown="on with 4 processors or more"),
    Option("mount", "resend", parse_bool, "true", "Re-queue requests when a worker is replaced (kernel 6.9)."),
    Option("mount", "metrics", loopback, "", "Serve Prometheus metrics here; loopback only.", "HOST:PORT",
           shown="none"),
    Option("mount", "events", some_folder, "", "Write start-up events of reads into this local folder.", "DIR",
           shown="BOOTSEER_EVENTS, else none"),
    *LOG,
))  # fmt: skip

OPTIONS = STRIPEFS.all


def by_name(name: str) -> Option | None:
    """The option of that name, written with - or _; None when there is none."""
    return STRIPEFS.by_name(name)


def nearest(word: str, known: Iterable[str]) -> str:
    """The hint for an unknown word."""
    return STRIPEFS.nearest(word, known)


def config_files(environ: Mapping[str, str]) -> list[str]:
    """Configuration files that are read when none is named, the weakest first. They need not exist."""
    return STRIPEFS.files(environ)


def resolve(
    given: Given,
    *,
    url: str = "",
    mountpoint: str = "",
    mount_options: tuple[str, ...] = (),
    config: str = "",
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from what the command line gave, the environment, the files and the defaults, in that order.

    given: by option name, from flags and -o. config: the one file to read instead of the usual ones ("" for those;
    STRIPEFS_CONFIG also names it). environ: the process's own unless given. Raises ConfigError, which names the place
    a bad value came from.
    """
    environ = os.environ if environ is None else environ
    values = STRIPEFS.values(given, environ, config_files(environ), config)
    named: dict[str, Any] = {"mountpoint": mountpoint, "options": mount_options}
    base = Settings()
    return Settings(
        base.store._replace(url=url, **values["store"]),
        base.read._replace(**values["read"]),
        base.mount._replace(**{"allow_other": os.geteuid() == 0} | values["mount"] | named),
        base.write._replace(**values["write"]),
        base.cache._replace(**values["cache"]),
    )
