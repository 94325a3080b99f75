"""`-o a,b=c`: the one place where mount options are taken apart, for `stripefs mount` and `mount.stripefs` alike.

A word is one of three things: an option of stripefs (`range_size=16M`, `nohedge`); an option that the kernel
understands and that is passed on to it (`noexec`); or one that only mount(8), fstab or systemd care about, or that
changes nothing here, which is dropped. Anything else is refused, or dropped too when mount(8) asked to be sloppy. A
comma inside a value is written `\\,`, a backslash `\\\\`; a value in double quotes may hold commas as well (SELinux
contexts do).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from stripefs import config
from stripefs.errors import ConfigError

__all__ = ["MountOptions", "expand", "split"]

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
    """What `-o` said. read_write is True when `rw` was the last word on it, False for `ro`, None for neither.

    `writable` is the same wish as `rw` in a word that mount(8) never adds by itself: True for it, False for `ro`, None
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
