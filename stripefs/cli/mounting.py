"""Mounting by `stripefs mount` and `mount.stripefs` alike: from names and options to settings, and on to a mount.

Mount options (`-o a,b=c`) are taken apart here alone.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from stripefs import config
from stripefs.errors import ConfigError, MountError
from stripefs.fuse import kernel
from stripefs.settings import Settings

__all__ = ["FUSE_CONF", "SUDO", "MountOptions", "absolute", "expand", "mounted_at", "prepare", "split", "start"]

_IGNORED = frozenset({
    "defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "nofail", "_netdev", "async", "loud",
    "silent", "mand", "nomand", "atime", "diratime", "norelatime", "nostrictatime", "lazytime", "nolazytime",
    "default_permissions",
})  # fmt: skip
_IGNORED_PREFIXES = ("x-", "X-", "comment=", "fsname=", "subtype=")
_KERNEL = frozenset({
    "exec", "noexec", "suid", "nosuid", "dev", "nodev", "sync", "dirsync", "noatime", "nodiratime", "relatime",
    "strictatime", "nonempty",
})  # fmt: skip
_KERNEL_VALUES = frozenset({"context", "fscontext", "defcontext", "rootcontext"})
_REFUSED = {
    "remount": "unmount and mount again to change options",
    "bind": "use mount(8) without a type for bind mounts",
    "move": "use mount(8) without a type to move mounts",
}
_WORD = re.compile(r'(?:\\.|"(?:\\.|[^"\\])*"|[^,\\"]|["\\])*', re.DOTALL)


@dataclass(slots=True)
class MountOptions:
    """The parsed value of `-o`. read_write is True when `rw` was the last word on it, False for `ro`, None for neither.

    `writable` means `rw`, by a word that mount(8) never adds by itself: True for it, False for `ro`, None
    for neither.
    """

    given: dict[str, tuple[str, str]] = field(default_factory=dict)
    kernel: list[str] = field(default_factory=list)
    config: str = ""
    read_write: bool | None = None
    writable: bool | None = None


def split(text: str) -> list[str]:
    """The words of `text`, unescaped and unquoted; empty ones dropped."""
    words, at = [], 0
    while at <= len(text):
        match = _WORD.match(text, at)
        assert match is not None  # the pattern matches the empty string anywhere
        words.append(re.sub(r'\\(.)|"', lambda found: found[1] or "", match[0], flags=re.DOTALL))
        at = match.end() + 1
    return [word for word in words if word]


def expand(texts: list[str] | tuple[str, ...], *, sloppy: bool = False) -> MountOptions:
    """The meaning of all -o arguments together; later words win. Raises ConfigError naming the word."""
    result = MountOptions()
    for word in [word for text in texts for word in split(text)]:
        name, equals, value = word.partition("=")
        if word in ("rw", "ro"):
            result.read_write = word == "rw"
            result.writable = False if word == "ro" else result.writable
        elif word == "writable":
            result.read_write = result.writable = True
        elif word in _IGNORED or word.startswith(_IGNORED_PREFIXES):
            continue
        elif word in _KERNEL or (equals and name in _KERNEL_VALUES):
            # The kernel splits at commas as well, and unquotes SELinux contexts itself.
            result.kernel.append(f'{name}="{value}"' if "," in value else word)
        elif name == "config" and equals:
            result.config = value
        elif name in _REFUSED:
            raise ConfigError(f"-o {name} is not supported", hint=_REFUSED[name])
        elif not _own(result, name, value if equals else None) and not sloppy:
            raise ConfigError(f"-o {name}: unknown mount option", hint=config.nearest(name, _known()))
    return result


def _own(result: MountOptions, name: str, value: str | None) -> bool:
    """Take `name` as an option of stripefs; False when it is none."""
    option, text = config.by_name(name), value
    if option is None and value is None and name.startswith("no"):
        option, text = config.by_name(name[2:].lstrip("_-")), "false"
        if option is not None and not option.is_switch:
            option = None
    if option is None:
        return False
    if text is None:
        if not option.is_switch:
            raise ConfigError(f"-o {name} needs a value", hint=f"write {name}={option.metavar}")
        text = "true"
    if option.many and option.name in result.given:
        text = f"{result.given[option.name][0]},{text}"
    result.given[option.name] = (text, f"-o {name}")
    return True


def _known() -> set[str]:
    own = {option.name.replace("-", "_") for option in config.OPTIONS}
    return own | _KERNEL | _KERNEL_VALUES | _IGNORED | {"ro", "rw", "writable", "config"}


FUSE_CONF = Path("/etc/fuse.conf")

SUDO = 'sudo "$(command -v stripefs)"'
"""sudo looks for commands in a path of its own, where a virtual environment is not."""

_PRIVILEGE = ("Permission denied", "not permitted", "is not installed")


def prepare(source: str, mountpoint: str, options: MountOptions, given: config.Given | None = None) -> Settings:
    """Settings for this mount, after the checks that need no connection.

    `given` (flags) beats what `options` (-o) gave. Raises ConfigError.
    """
    settings = config.resolve(
        options.given | dict(given or {}),
        url=absolute(source),
        mountpoint=os.path.abspath(mountpoint),
        mount_options=tuple(options.kernel),
        config=options.config,
    )
    if settings.mount.allow_other and os.geteuid() != 0 and not _users_may_allow_other(FUSE_CONF):
        raise ConfigError(
            f"{FUSE_CONF} does not let plain users give --allow-other",
            hint=f"add the line user_allow_other to {FUSE_CONF}, or mount without it",
        )
    return settings


def start(settings: Settings, *, foreground: bool = False) -> int:
    """Mount, and come back when the mount answers; in the foreground, when it has ended. The exit code."""
    try:
        return _serve_here(settings) if foreground else _serve_behind(settings)
    except MountError as error:
        if os.geteuid() == 0 or not any(words in error.message for words in _PRIVILEGE):
            raise
        hint = f"{error.hint}; or mount as root: {SUDO} mount …" if error.hint else f"mount as root: {SUDO} mount …"
        raise MountError(error.message, hint=hint) from error


def _serve_behind(settings: Settings) -> int:
    from stripefs.fuse import daemonize
    from stripefs.fuse.ipc import store_mount_spec

    return daemonize.start(store_mount_spec(settings))


def _serve_here(settings: Settings) -> int:
    from stripefs import logs
    from stripefs.fuse import supervisor
    from stripefs.fuse.ipc import store_mount_spec
    from stripefs.systemd import notify

    logs.configure(settings.mount.log_format, settings.mount.log_level, settings.mount.log_file)

    def ready() -> None:
        notify("READY=1")

    return supervisor.serve(store_mount_spec(settings), ready=ready)


def absolute(source: str) -> str:
    """A path made absolute, because a daemon leaves the directory it was started in; a URL as it is."""
    if not source:
        raise ConfigError("the source is empty", hint="give a URL such as hdfs://namenode:8020/data, or a directory")
    from stripefs.store.url import refuse_half_url

    refuse_half_url(source)
    return source if "://" in source else os.path.abspath(os.path.expanduser(source))


def mounted_at(path: str) -> kernel.MountPoint | None:
    """The topmost mount whose root is `path`, found without touching that root, because nobody may answer for it."""
    parent, name = os.path.split(os.path.abspath(path))
    return kernel.find_mount(os.path.join(os.path.realpath(parent), name))


def _users_may_allow_other(conf: Path) -> bool:
    try:
        lines = conf.read_text().splitlines()
    except OSError:
        return False
    return any(text.split("#")[0].strip() == "user_allow_other" for text in lines)
