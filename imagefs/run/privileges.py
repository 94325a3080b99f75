"""The privileges of a container: its capabilities, its view of /proc and /sys, and the seccomp filter. Pure.

Capabilities are those of `docker run`. `--cap-drop` and `--cap-add` change them as they do there: a drop of ALL leaves
what is added, an addition of ALL leaves out what is dropped.

A seccomp profile in Docker's form, which podman and containerd read too, is a list of rules with conditions: on the
container's capabilities, on the architecture, and on the kernel. Here those rules are chosen whose conditions hold. The
form is that of `seccomp.json` beside this module, the profile of containers for which no other is named.

That profile allows by name, and denies what it does not know with ENOSYS, for which C libraries have another way. A
list of what is denied would let every system call through that a newer kernel adds. Beside Docker's profile it allows
placement in NUMA memory, which training jobs use; it names what is denied on purpose, so that this answers EPERM.
podman's (/usr/share/containers/seccomp.json) is not the default where it is installed: it lets every container make
user namespaces and mount in them, which is the shortest way to weaknesses of a kernel, and an image would run on some
hosts and not on others. The x32 calls of Docker's are left out: no kernel of a distribution answers them, and runtimes
compile the filter of each architecture anew for each container.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from imagefs.errors import RunError
from stripefs.errors import ConfigError
from stripefs.records import NamedTuple

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from typing import Any

__all__ = ["ALL", "CAPABILITIES", "CGROUPS", "KNOWN", "MASKED", "READ_ONLY", "Profile", "granted", "parse_capabilities"]

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
"""The capabilities of a container that asks for none."""

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


_ACTIONS = frozenset(
    f"SCMP_ACT_{name}" for name in ("ALLOW", "ERRNO", "KILL", "KILL_PROCESS", "KILL_THREAD", "LOG", "TRACE", "TRAP")
)
_OPERATORS = frozenset(f"SCMP_CMP_{name}" for name in ("NE", "LT", "LE", "EQ", "GE", "GT", "MASKED_EQ"))
_NATIVE = {
    "amd64": "SCMP_ARCH_X86_64",
    "386": "SCMP_ARCH_X86",
    "arm64": "SCMP_ARCH_AARCH64",
    "arm": "SCMP_ARCH_ARM",
    "ppc64le": "SCMP_ARCH_PPC64LE",
    "riscv64": "SCMP_ARCH_RISCV64",
    "s390x": "SCMP_ARCH_S390X",
}
"""Names in a profile's map of the architectures of `imagefs.reference`."""


class Profile(NamedTuple):
    """A profile on a machine. document: the JSON that was read from `source`, which errors name. architecture: of the
    machine, as images name it. kernel: the first two numbers of its version."""

    document: object
    source: str
    architecture: str
    kernel: tuple[int, int]

    def filter(self, capabilities: Collection[str]) -> dict[str, Any]:
        """The object `linux.seccomp` of a container with these capabilities. Raises RunError for what is no profile."""
        document, source = _object(self.document, self.source, "it"), self.source
        if document.get("listenerPath") or document.get("listenerMetadata"):
            raise RunError(f"{source}: no program listens for system calls here, and listenerPath asks for one")
        found: dict[str, Any] = {
            "defaultAction": _action(document.get("defaultAction"), source),
            "architectures": _architectures(document, source, self.architecture),
            "syscalls": [
                _rule(rule, source)
                for rule in _objects(document.get("syscalls"), source, "syscalls")
                if _holds(rule, self, capabilities)
            ],
        }
        if document.get("defaultErrnoRet") is not None:
            found["defaultErrnoRet"] = _number(document["defaultErrnoRet"], source)
        if document.get("flags"):
            found["flags"] = _texts(document["flags"], source, "flags")
        return {name: value for name, value in found.items() if value or name == "defaultErrnoRet"}


def _architectures(document: Mapping[str, Any], source: str, architecture: str) -> list[str]:
    """The architectures whose calls the filter knows; a call of any other kills the process. None listed: the machine's
    own."""
    mapped = _objects(document.get("archMap"), source, "archMap")
    listed = _texts(document.get("architectures"), source, "architectures")
    if mapped and listed:
        raise RunError(f"{source} has both architectures and archMap, of which one may be there")
    for entry in mapped:
        if entry.get("architecture") == _NATIVE.get(architecture):
            return [entry["architecture"], *_texts(entry.get("subArchitectures"), source, "subArchitectures")]
    return listed


def _rule(rule: Mapping[str, Any], source: str) -> dict[str, Any]:
    names = _texts(rule.get("names"), source, "names") or _texts([rule.get("name")], source, "name")
    if not all(names):
        raise RunError(f"{source} is no seccomp profile: a rule has an empty name")
    found: dict[str, Any] = {"names": names, "action": _action(rule.get("action"), source)}
    if rule.get("errnoRet") is not None:
        found["errnoRet"] = _number(rule["errnoRet"], source)
    if rule.get("args"):
        found["args"] = [_argument(one, source) for one in _objects(rule["args"], source, "args")]
    return found


def _argument(argument: Mapping[str, Any], source: str) -> dict[str, Any]:
    if argument.get("op") not in _OPERATORS:
        raise RunError(f"{source}: {argument.get('op')!r} is no operator of seccomp")
    numbers = {name: _number(argument.get(name, 0), source) for name in ("index", "value", "valueTwo")}
    return {**numbers, "op": argument["op"]}


def _holds(rule: Mapping[str, Any], profile: Profile, capabilities: Collection[str]) -> bool:
    """Tells whether a rule is for this container, which has all capabilities that it includes and none that it
    excludes."""
    source = profile.source
    wanted, unwanted = (_object(rule.get(name) or {}, source, name) for name in ("includes", "excludes"))
    for condition, includes in ((wanted, True), (unwanted, False)):
        held = [name in capabilities for name in _texts(condition.get("caps"), source, "caps")]
        if not all(held) if includes else any(held):
            return False
        architectures = _texts(condition.get("arches"), source, "arches")
        machine = "x86" if profile.architecture == "386" else profile.architecture
        if architectures and (machine in architectures) is not includes:
            return False
        if condition.get("minKernel") and (profile.kernel >= _version(condition["minKernel"], source)) is not includes:
            return False
    return True


def _version(text: object, source: str) -> tuple[int, int]:
    numbers = str(text).split(".")
    if len(numbers) != 2 or not all(one.isascii() and one.isdigit() for one in numbers):
        raise RunError(f"{source}: {text!r} is no version of a kernel such as 4.8")
    return int(numbers[0]), int(numbers[1])


def _action(value: object, source: str) -> str:
    if value == "SCMP_ACT_NOTIFY":
        raise RunError(f"{source}: no program listens for system calls here, and SCMP_ACT_NOTIFY asks for one")
    if not isinstance(value, str) or value not in _ACTIONS:
        raise RunError(f"{source}: {value!r} is no action of seccomp")
    return value


def _number(value: object, source: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 64:
        raise RunError(f"{source}: {value!r} stands where a number should be")
    return value


def _object(value: object, source: str, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RunError(f"{source} is no seccomp profile: {name} is no object")
    return value


def _objects(value: object, source: str, name: str) -> Sequence[Mapping[str, Any]]:
    return [_object(one, source, f"an entry of {name}") for one in _list(value, source, name)]


def _texts(value: object, source: str, name: str) -> list[str]:
    found = list(_list(value, source, name))
    if not all(isinstance(one, str) for one in found):
        raise RunError(f"{source} is no seccomp profile: {name} is no list of texts")
    return found


def _list(value: object, source: str, name: str) -> Iterator[Any]:
    if value is not None and not isinstance(value, list):
        raise RunError(f"{source} is no seccomp profile: {name} is no list")
    return iter(value or ())
