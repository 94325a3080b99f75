"""The units of systemd for what runs on a host, as text. The one place where they are written.

What they have in common follows from what is served. Mounts must be seen by containerd, so nothing here gives a service
a mount namespace of its own (PrivateTmp=, ProtectSystem= and their like would). A supervisor unmounts in its own order,
so only it is told to stop (KillMode=mixed), and workers end with it. The daemon's keeper must outlive even that
(KillMode=process), because it has what running containers read through. Containers wait for these services, so they are
restarted whatever ended them, as often as it takes, and are among the last that the kernel kills for memory.
"""

from __future__ import annotations

import hashlib
import re

__all__ = ["DAEMON", "SERVICES", "SNAPSHOTTER", "STRIPEFS", "is_unedited", "signed", "units"]

DAEMON = "imagefs.service"
SNAPSHOTTER = "imagefs-snapshotter.service"
STRIPEFS = "stripefs@.service"

SERVICES = (DAEMON, SNAPSHOTTER)
"""The services that are enabled; a mount of stripefs is enabled by its user."""

_DAEMON = """\
[Unit]
Description=Blocks of lazy container images
After=local-fs.target network.target
Before=containerd.service
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={imagefs} daemon
# Replaces the worker under the live mounts. A restart harms no mount either: readers wait for the next daemon.
ExecReload=/bin/kill -HUP $MAINPID
KillMode=process
OOMPolicy=continue
Restart=always
RestartSec=1
TimeoutStartSec=60
TimeoutStopSec=60
WatchdogSec=60
{common}
[Install]
WantedBy=multi-user.target containerd.service
"""

_SNAPSHOTTER = """\
[Unit]
Description=Snapshotter of containerd for lazy container images
After=local-fs.target network.target {daemon}
Wants={daemon}
Before=containerd.service
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={imagefs} snapshotter
KillMode=mixed
Restart=always
RestartSec=1
TimeoutStartSec=60
TimeoutStopSec=60
WatchdogSec=60
{common}
[Install]
WantedBy=multi-user.target containerd.service
"""

_STRIPEFS = """\
# /etc/bootseer/mounts/NAME.env says SOURCE=hdfs://namenode:8020/NAME (and any STRIPEFS_* variable); NAME is mounted at
# /mnt/NAME: systemctl enable --now stripefs@NAME
[Unit]
Description=stripefs mount of %i
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
NotifyAccess=main
EnvironmentFile=/etc/bootseer/mounts/%i.env
ExecStartPre=/bin/mkdir -p /mnt/%i
ExecStart={stripefs} mount --foreground ${{SOURCE}} /mnt/%i
# Replaces the worker under the live mount: after an upgrade, or to let go of its memory.
ExecReload=/bin/kill -HUP $MAINPID
ExecStopPost=-/bin/umount -l /mnt/%i
KillMode=mixed
Restart=on-failure
RestartSec=5
TimeoutStartSec=120
TimeoutStopSec=120
WatchdogSec=60
{common}
[Install]
WantedBy=multi-user.target
"""

_COMMON = """\
Delegate=yes
LimitNOFILE=1048576
TasksMax=infinity
OOMScoreAdjust=-999
"""

_SIGNATURE = re.compile(r"# Written by `imagefs install`, which overwrites it; own settings belong into "
                        r"`systemctl edit \S+`\. ([0-9a-f]{16})\n")  # fmt: skip


def units(imagefs: str, stripefs: str) -> dict[str, str]:
    """By file name, the text of each unit. imagefs, stripefs: absolute paths of the commands."""
    values = {"imagefs": _escaped(imagefs), "stripefs": _escaped(stripefs), "daemon": DAEMON, "common": _COMMON}
    texts = {DAEMON: _DAEMON, SNAPSHOTTER: _SNAPSHOTTER, STRIPEFS: _STRIPEFS}
    return {name: signed(name, text.format(**values)) for name, text in texts.items()}


def signed(name: str, text: str) -> str:
    """`text` below a line by which `is_unedited` knows it again."""
    return (
        f"# Written by `imagefs install`, which overwrites it; own settings belong into `systemctl edit {name}`. "
        f"{_digest(text)}\n{text}"
    )


def is_unedited(text: str) -> bool:
    """Tells whether `signed` made this text, of this version or of another, and nobody has changed it since."""
    found = _SIGNATURE.match(text)
    return found is not None and _digest(text[found.end() :]) == found[1]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _escaped(path: str) -> str:
    """A path as one word of ExecStart=: specifiers (%) and variables ($) are doubled, a space needs quotes."""
    quoted = path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{quoted}"' if re.search(r"[\s\"'\\;]", path) else quoted
