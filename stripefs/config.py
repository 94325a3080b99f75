"""Every option of stripefs, declared once, and how its value is found.

`OPTIONS` is the one declaration: flags, `STRIPEFS_*` variables, TOML keys, `-o` words, `--help` and the table in
docs/cli.md all come from it. `resolve` turns what was given into `Settings`; an option takes its value from the first
of these that names it:

    a flag or an -o word  >  the environment  >  ~/.config/bootseer/stripefs.toml  >  /etc/bootseer/stripefs.toml
                          >  its default

Every source is reduced to text first, so one parser an option decides what is valid, and its complaint is put behind
the name of the place the text came from. A file says `version = 1`, then `[store]`, `[read]` and `[mount]`; a key that
is no option is refused, because a misspelt limit that is silently ignored is found in production. Variables are not
checked that way: Kubernetes makes `STRIPEFS_…` variables of its own for a service named stripefs.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stripefs.errors import ConfigError
from stripefs.settings import GIB, MIB, Settings
from stripefs.units import format_size, parse_duration, parse_size

__all__ = ["OPTIONS", "Given", "Option", "by_name", "config_files", "nearest", "resolve"]

Given = Mapping[str, tuple[str, str]]
"""Values by option name: (text, where it was given, for messages)."""

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


def parse_bool(text: str) -> bool:
    """True or False from 1/0, true/false, yes/no, on/off. Raises ConfigError."""
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise ConfigError(f"{text!r} is neither true nor false")
    return word in _TRUE


def _size(least: int, most: int, auto: int | None = None) -> Callable[[str], int]:
    """A parser of sizes in [least, most] bytes; the word auto stands for `auto` where that is given."""

    def parse(text: str) -> int:
        if auto is not None and text.strip().lower() == "auto":
            return auto
        size = parse_size(text)
        if not least <= size <= most:
            raise ConfigError(f"{text} is outside {format_size(least)} to {format_size(most)}")
        return size

    return parse


def _count(least: int, most: int, word: str = "", stands_for: int = 0, base: int = 10) -> Callable[[str], int]:
    """A parser of whole numbers in [least, most]; `word`, where given, stands for `stands_for`."""

    def parse(text: str) -> int:
        if word and text.strip().lower() == word:
            return stands_for
        try:
            number = int(text, base)
        except ValueError:
            raise ConfigError(f"{text!r} is not {'an octal' if base == 8 else 'a whole'} number") from None
        if not least <= number <= most:
            low, high = (f"{least:03o}", f"{most:03o}") if base == 8 else (str(least), str(most))
            raise ConfigError(f"{text} is outside {low} to {high}")
        return number

    return parse


def _duration(least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        seconds = parse_duration(text)
        if not least <= seconds <= most:
            raise ConfigError(f"{text} is outside {least:g}s to {most:g}s")
        return seconds

    return parse


def _choice(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ConfigError(f"{text!r} is none of {', '.join(words)}")
        return word

    return parse


def _folder(text: str) -> str:
    """An existing directory, absolute: a daemon does not keep the directory it was started in."""
    path = Path(text).expanduser().absolute()
    if text and not path.is_dir():
        raise ConfigError(f"{path} is not a directory")
    return str(path) if text else ""


def _new_file(text: str) -> str:
    path = Path(text).expanduser().absolute()
    if text and (path.is_dir() or not path.parent.is_dir()):
        raise ConfigError(f"{path} cannot be written", hint="name a file in an existing directory")
    return str(path) if text else ""


def _loopback(text: str) -> str:
    """HOST:PORT whose host is this machine alone: the page tells hosts and rates and asks nobody who they are."""
    if not text:
        return ""
    host, _, port = text.rpartition(":")
    name = host.removeprefix("[").removesuffix("]")
    try:
        local = name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        local = False
    if not local or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"{text!r} is not a loopback address and port", hint="give one such as 127.0.0.1:9464")
    return text


def _kib(text: str) -> int:
    return _size(4096, GIB)(text) >> 10


def _text(text: str) -> str:
    return text.strip()


@dataclass(frozen=True, slots=True)
class Option:
    """One thing that can be set.

    section is the attribute of `Settings` and the TOML table; `field` the attribute in it (the name with underscores
    unless given). `default` is text as a user would write it; `shown` says in words what a default means that is
    worked out later. `choices` lists the words for shell completion; a `flag` option takes none but true and false.
    """

    section: str
    name: str
    parse: Callable[[str], Any]
    default: str
    help: str
    metavar: str = ""
    field: str = ""
    shown: str = ""
    choices: tuple[str, ...] = ()

    @property
    def attribute(self) -> str:
        return self.field or self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        return "STRIPEFS_" + self.name.replace("-", "_").upper()

    @property
    def is_switch(self) -> bool:
        return self.parse is parse_bool

    @property
    def flag(self) -> str:
        return f"--{self.name}/--no-{self.name}" if self.is_switch else f"--{self.name}"

    @property
    def default_in_words(self) -> str:
        return self.shown or ({"true": "on", "false": "off"}[self.default] if self.is_switch else self.default)


_TRANSPORTS = ("auto", "native", "webhdfs", "libhdfs")
_LOG_LEVELS = ("debug", "info", "warning", "error")
_MOST_ID = (1 << 32) - 2

OPTIONS: tuple[Option, ...] = (
    Option("store", "hdfs-transport", _choice(*_TRANSPORTS), "auto", "How HDFS is read.", "NAME", "transport",
           choices=_TRANSPORTS),
    Option("store", "hdfs-user", _text, "", "The user HDFS sees.", "NAME",
           shown="HADOOP_USER_NAME, else the login name"),
    Option("store", "hadoop-conf", _folder, "", "Folder of core-site.xml and hdfs-site.xml: HA names, ports.", "DIR",
           shown="HADOOP_CONF_DIR"),
    Option("store", "webhdfs-port", _count(1, 65535, "auto"), "auto", "The NameNode's http port.", "PORT",
           shown="hdfs-site, else 9870"),
    Option("store", "use-datanode-hostname", parse_bool, "false",
           "Reach DataNodes by name instead of the address they registered."),
    Option("store", "host-timeout", _duration(0.1, 3600), "5s", "A data host silent this long counts as failed.",
           "TIME"),
    Option("read", "memory", _size(64 * MIB, 1 << 50, auto=0), "auto", "Most memory for data of this mount.", "SIZE",
           shown="an eighth of the memory, at most 1 GiB"),
    Option("read", "range-size", _size(256 << 10, GIB), "8MiB", "Size of one read from a data host.", "SIZE"),
    Option("read", "threads", _count(1, 1024), "32", "Reads under way at once, all data hosts together.", "N"),
    Option("read", "per-host", _count(1, 1024), "3", "Reads under way at once at one data host.", "N"),
    Option("read", "io-timeout", _duration(1, 86400), "90s", "A read that took this long answers EIO.", "TIME"),
    Option("read", "hedge", parse_bool, "true", "Ask another replica when a read lags behind the others."),
    Option("mount", "allow-other", parse_bool, "false", "Let other users in; they act as the mount's user.",
           shown="on for root, else off"),
    Option("mount", "attr-timeout", _duration(0, 86400), "1s", "How long names and attributes may be out of date.",
           "TIME"),
    Option("mount", "uid", _count(0, _MOST_ID, "owner", -1), "owner", "Show all files as owned by this user id.", "ID",
           shown="the owner in the store"),
    Option("mount", "gid", _count(0, _MOST_ID, "owner", -1), "owner", "Show all files with this group id.", "ID",
           shown="the group in the store"),
    Option("mount", "umask", _count(0, 0o777, base=8), "000", "Permission bits to take away, octal.", "MASK"),
    Option("mount", "read-ahead", _kib, "4MiB", "The kernel's own read-ahead.", "SIZE", "read_ahead_kb"),
    Option("mount", "max-background", _count(1, 65535), "64", "Requests the kernel may have under way.", "N"),
    Option("mount", "resend", parse_bool, "true", "Re-queue requests when a worker is replaced (kernel 6.9)."),
    Option("mount", "metrics", _loopback, "", "Serve Prometheus metrics here; loopback only.", "HOST:PORT",
           shown="none"),
    Option("mount", "log-format", _choice("text", "json"), "text", "Form of log lines.", "text|json",
           choices=("text", "json")),
    Option("mount", "log-level", _choice(*_LOG_LEVELS), "info", "Least level that is logged.", "LEVEL",
           choices=_LOG_LEVELS),
    Option("mount", "log-file", _new_file, "", "Log to this file.", "FILE",
           shown="standard error with -f, else the mount's state folder"),
)  # fmt: skip

_NAMES = {option.name: option for option in OPTIONS}


def by_name(name: str) -> Option | None:
    """The option of that name, written with - or _; None when there is none."""
    return _NAMES.get(name.strip().lower().replace("_", "-"))


def nearest(word: str, known: Iterable[str]) -> str:
    """The hint for an unknown word: `did you mean …?`, or the choice, where it is short, when nothing is near."""
    import difflib

    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]}?"
    return f"known are {', '.join(known)}" if len(known) <= 12 else "stripefs mount --help lists what there is"


def config_files(environ: Mapping[str, str]) -> list[Path]:
    """Where files are looked for when none is named, the weakest first. They need not exist."""
    home = environ.get("XDG_CONFIG_HOME") or (f"{environ['HOME']}/.config" if environ.get("HOME") else "")
    return [Path("/etc/bootseer/stripefs.toml"), *([Path(home, "bootseer/stripefs.toml")] if home else [])]


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
    found: dict[str, tuple[str, str]] = {}
    named = config or environ.get("STRIPEFS_CONFIG", "")
    for file in [Path(named).expanduser()] if named else config_files(environ):
        found |= _from_file(file, required=bool(named))
    found |= {o.name: (environ[o.variable], o.variable) for o in OPTIONS if environ.get(o.variable)}
    found |= given
    values: dict[str, dict[str, Any]] = {"store": {"url": url}, "read": {}, "mount": {}}
    values["mount"] |= {"mountpoint": mountpoint, "options": mount_options, "allow_other": os.geteuid() == 0}
    for name, (text, origin) in found.items():
        option = _NAMES[name]
        try:
            values[option.section][option.attribute] = option.parse(text)
        except ConfigError as error:
            raise ConfigError(f"{origin}: {error.message}", hint=error.hint) from None
    base = Settings()
    return Settings(
        replace(base.store, **values["store"]),
        replace(base.read, **values["read"]),
        replace(base.mount, **values["mount"]),
    )


def _from_file(file: Path, *, required: bool) -> dict[str, tuple[str, str]]:
    import tomllib

    try:
        document = tomllib.loads(file.read_text())
    except FileNotFoundError:
        if required:
            raise ConfigError(f"{file} does not exist", hint="check --config and STRIPEFS_CONFIG") from None
        return {}
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise ConfigError(f"{file} is not TOML: {error}") from error
    version = document.pop("version", None)
    if version != 1 or isinstance(version, bool):
        what = "has no version" if version is None else f"has version {version!r}"
        raise ConfigError(f"{file} {what}", hint="this stripefs reads files that say version = 1")
    found: dict[str, tuple[str, str]] = {}
    for section, table in document.items():
        known = [option.name for option in OPTIONS if option.section == section]
        if not known or not isinstance(table, dict):
            raise ConfigError(f"{file}: {section!r} is no table of settings", hint=_where(section))
        for key, value in table.items():
            option = by_name(key)
            if option is None or option.section != section:
                raise ConfigError(f"{file}: unknown key {key!r} in [{section}]", hint=_where(key, known))
            found[option.name] = (_as_text(value, f"{file}: {key}"), f"{file}: {section}.{key}")
    return found


def _where(word: str, known: Iterable[str] = ()) -> str:
    """The hint for a word that does not belong where it stands in a file."""
    option = by_name(word)
    if option is not None:
        return f"it belongs in [{option.section}]"
    return nearest(word.replace("_", "-"), known or {option.section for option in OPTIONS})


def _as_text(value: object, origin: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigError(f"{origin} must be text, a number, true or false")
