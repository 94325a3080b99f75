"""The privileges of a container: its capabilities, and what of /proc and /sys it neither sees nor changes. Pure.

Both are those of `docker run`. `--cap-drop` and `--cap-add` change the capabilities as they do there: a drop of ALL
leaves what is added, an addition of ALL leaves out what is dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from imagefs.errors import RunError
from stripefs.errors import ConfigError

__all__ = ["ALL", "CAPABILITIES", "CGROUPS", "KNOWN", "MASKED", "READ_ONLY", "granted", "parse_capabilities"]

CAPABILITIES = (
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
)
"""Those of a container that says nothing."""

KNOWN = (
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID",
    "CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG", "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
)  # fmt: skip
"""All of Linux, each at the place of its number (include/uapi/linux/capability.h)."""

ALL = "ALL"

CGROUPS = "/sys/fs/cgroup"
MASKED = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
)
READ_ONLY = (
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
    CGROUPS,  # with version 1 runtimes leave the directory of the hierarchies writable
)


def parse_capabilities(flag: str, texts: Iterable[str]) -> list[str]:
    """The names that `flag` was given: NET_ADMIN, cap_net_admin, or ALL; several with commas. Raises ConfigError."""
    found = []
    for text in ",".join(texts).split(",") if texts else []:
        name = text.strip().upper()
        name = name if name == ALL or name.startswith("CAP_") else f"CAP_{name}"
        if name != ALL and name not in KNOWN:
            raise ConfigError(f"{flag} {text}: Linux has no such capability", hint="man 7 capabilities lists them")
        found.append(name)
    return found


def granted(added: Sequence[str], dropped: Sequence[str], held: Collection[str]) -> list[str]:
    """The capabilities of a container's root. held: the caller's own, more than which it cannot give.

    Raises RunError for one that is added by name and that the caller lacks.
    """
    lacking = sorted({*added} - {*held, ALL})
    if lacking:
        raise RunError(
            f"--cap-add {lacking[0].removeprefix('CAP_')}: this process does not have that capability itself",
            hint="in a container, give it to that one first",
        )
    if ALL in added:
        return [name for name in KNOWN if name in held and name not in dropped]
    kept = [] if ALL in dropped else [name for name in CAPABILITIES if name not in dropped]
    return [*kept, *(name for name in KNOWN if name in added and name not in kept)]
