"""What `stripefs mount` and `mount.stripefs` share: from names and options to settings, and on to a mount."""

from __future__ import annotations

import os
from pathlib import Path

from stripefs import config
from stripefs.cli.mount_options import MountOptions
from stripefs.errors import ConfigError, MountError
from stripefs.fuse import kernel
from stripefs.settings import Settings

__all__ = ["FUSE_CONF", "SUDO", "absolute", "mounted_at", "prepare", "start"]

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
    from stripefs.fuse.mount_spec import store_mount_spec

    return daemonize.start(store_mount_spec(settings))


def _serve_here(settings: Settings) -> int:
    from stripefs import logs
    from stripefs.fuse import supervisor
    from stripefs.fuse.mount_spec import store_mount_spec
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
