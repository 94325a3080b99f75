"""Options declared once, and the resolution of their values: the basis of every command's configuration.

`Options` is the one declaration of a program: flags, variables, TOML keys, `-o` words, `--help` and the tables in
docs/reference all come from it. An option takes its value from the first of these that names it:

    a flag or an -o word  >  the environment  >  ~/.config/bootseer/NAME.toml  >  /etc/bootseer/NAME.toml
                          >  its default

Every source is reduced to text first, so one parser an option decides what is valid, and its complaint is put behind
the name of the place the text came from. A file says `version = 1`, then one table a section; a key that is no option
is refused, because a misspelt limit that is silently ignored is found in production. Variables are not checked that
way: Kubernetes makes variables of its own for a service of the same name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from stripefs.errors import ConfigError
from stripefs.settings_file import as_text, documents
from stripefs.units import format_size, parse_duration, parse_rate, parse_size

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "Given",
    "Option",
    "Options",
    "by_pattern",
    "choice",
    "count",
    "duration",
    "existing_folder",
    "kib",
    "loopback",
    "new_file",
    "parse_bool",
    "patterns",
    "power_of_two",
    "rate",
    "size",
    "some_file",
    "some_folder",
    "store_paths",
    "store_urls",
    "text",
]

Given = Mapping[str, tuple[str, str]]
"""Values by option name: (text, where it was given, for messages)."""

_GIB = 1 << 30
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


# -- parsers: each takes the text of a value, and raises ConfigError for one that is not valid


def parse_bool(given: str) -> bool:
    """True or False from 1/0, true/false, yes/no, on/off."""
    word = given.strip().lower()
    if word not in _TRUE | _FALSE:
        raise ConfigError(f"{given!r} is neither true nor false")
    return word in _TRUE


def size(least: int, most: int, auto: int | None = None) -> Callable[[str], int]:
    """A parser of sizes in [least, most] bytes; the word auto stands for `auto` where that is given."""

    def parse(given: str) -> int:
        if auto is not None and given.strip().lower() == "auto":
            return auto
        found = parse_size(given)
        if not least <= found <= most:
            raise ConfigError(f"{given} is outside {format_size(least)} to {format_size(most)}")
        return found

    return parse


def power_of_two(least: int, most: int) -> Callable[[str], int]:
    """A parser of sizes in [least, most] bytes that are a power of two."""

    def parse(given: str) -> int:
        found = size(least, most)(given)
        if found & (found - 1):
            raise ConfigError(f"{given} is no power of two", hint="give one such as 4MiB or 8MiB")
        return found

    return parse


def by_pattern(*words: str) -> Callable[[str], tuple[tuple[str, str], ...]]:
    """A parser of PATTERN=WORD,PATTERN=WORD, each word one of `words`, into pairs in the order given."""

    def parse(given: str) -> tuple[tuple[str, str], ...]:
        pairs = []
        for item in filter(None, map(str.strip, given.split(","))):
            pattern, equals, word = item.rpartition("=")
            if not pattern or not equals:
                raise ConfigError(f"{item!r} is not PATTERN=WORD", hint=f"write *.ckpt={words[0]}, for example")
            pairs.append((pattern, choice(*words)(word)))
        return tuple(pairs)

    return parse


def patterns(given: str) -> tuple[str, ...]:
    """Shell patterns with commas between them, such as `*.safetensors,step-*/*`."""
    return tuple(filter(None, map(str.strip, given.split(","))))


def store_paths(given: str) -> tuple[str, ...]:
    """Absolute paths in a store, with commas between them, without . and .. and doubled slashes."""
    paths = []
    for item in filter(None, map(str.strip, given.split(","))):
        if not item.startswith("/") or ".." in item.split("/"):
            raise ConfigError(f"{item!r} is no absolute path in the store", hint="write it as /DIRECTORY/.stripefs")
        paths.append("/" + "/".join(part for part in item.split("/") if part not in ("", ".")))
    return tuple(paths)


def rate(most: int) -> Callable[[str], int]:
    """A parser of bytes a second up to `most`; 0 stands for itself."""

    def parse(given: str) -> int:
        found = int(parse_rate(given))
        if found > most:
            raise ConfigError(f"{given} is more than {format_size(most)} a second")
        return found

    return parse


def count(least: int, most: int, word: str = "", stands_for: int = 0, base: int = 10) -> Callable[[str], int]:
    """A parser of whole numbers in [least, most]; `word`, where given, stands for `stands_for`."""

    def parse(given: str) -> int:
        if word and given.strip().lower() == word:
            return stands_for
        try:
            number = int(given, base)
        except ValueError:
            raise ConfigError(f"{given!r} is not {'an octal' if base == 8 else 'a whole'} number") from None
        if not least <= number <= most:
            low, high = (f"{least:03o}", f"{most:03o}") if base == 8 else (str(least), str(most))
            raise ConfigError(f"{given} is outside {low} to {high}")
        return number

    return parse


def duration(least: float, most: float) -> Callable[[str], float]:
    """A parser of seconds in [least, most]."""

    def parse(given: str) -> float:
        seconds = parse_duration(given)
        if not least <= seconds <= most:
            raise ConfigError(f"{given} is outside {least:g}s to {most:g}s")
        return seconds

    return parse


def choice(*words: str) -> Callable[[str], str]:
    """A parser of one of `words`."""

    def parse(given: str) -> str:
        word = given.strip().lower()
        if word not in words:
            raise ConfigError(f"{given!r} is none of {', '.join(words)}")
        return word

    return parse


def _absolute(given: str) -> Path:
    """A path, absolute: a daemon does not keep the directory it was started in."""
    from pathlib import Path  # as other modules that not every command needs: a command is to start at once

    try:
        path = Path(given).expanduser().absolute()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, of a user who is not there, with a zero byte
        raise ConfigError(f"{given!r} is no path: {error}") from error
    return path


def existing_folder(given: str) -> str:
    """An existing directory, absolute."""
    path = _absolute(given)
    if given and not path.is_dir():
        raise ConfigError(f"{path} is not a directory")
    return str(path) if given else ""


def some_folder(given: str) -> str:
    """A directory, absolute, which is made where it is needed and missing; "" stands for itself."""
    path = _absolute(given)
    if given and path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is not a directory")
    return str(path) if given else ""


def new_file(given: str) -> str:
    """A file that can be made, absolute."""
    path = _absolute(given)
    if given and (path.is_dir() or not path.parent.is_dir()):
        raise ConfigError(f"{path} cannot be written", hint="name a file in an existing directory")
    return str(path) if given else ""


def some_file(given: str) -> str:
    """A path that is no directory, absolute; "" stands for itself."""
    path = _absolute(given)
    if given and path.is_dir():
        raise ConfigError(f"{path} is a directory")
    return str(path) if given else ""


def store_urls(given: str) -> tuple[str, ...]:
    """URLs and directories of stores, with commas between them; directories are made absolute."""
    items = [item.strip() for item in given.split(",") if item.strip()]
    return tuple(item if "://" in item else str(_absolute(item)) for item in items)


def loopback(given: str) -> str:
    """HOST:PORT whose host is this machine alone: the page tells hosts and rates and asks nobody who they are."""
    if not given:
        return ""
    import ipaddress

    host, _, port = given.rpartition(":")
    name = host.removeprefix("[").removesuffix("]")
    try:
        local = name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        local = False
    if not local or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"{given!r} is not a loopback address and port", hint="give one such as 127.0.0.1:9464")
    return given


def kib(given: str) -> int:
    """A size of 4 KiB to 1 GiB, in KiB."""
    return size(4096, _GIB)(given) >> 10


def text(given: str) -> str:
    return given.strip()


# -- what they make up


class Option(NamedTuple):
    """One thing that can be set.

    section is the part of the settings that it belongs to and the TOML table; `field` the attribute in it (the name
    with underscores unless given). `default` is text as a user would write it; `shown` says in words what a default
    means that is worked out later. `choices` lists the words for shell completion; a `flag` option takes none but true
    and false, and `opposite` names its other half where that is not --no-NAME. An option that is `many` may be given
    several times on a command line: the texts are joined with commas. `program` is filled in by `Options`.
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
    opposite: str = ""
    many: bool = False
    program: str = ""

    @property
    def attribute(self) -> str:
        return self.field or self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        return f"{self.program}_{self.name}".replace("-", "_").upper()

    @property
    def is_switch(self) -> bool:
        return self.parse is parse_bool

    @property
    def flag(self) -> str:
        return f"--{self.name}/--{self.opposite or f'no-{self.name}'}" if self.is_switch else f"--{self.name}"

    @property
    def default_in_words(self) -> str:
        return self.shown or ({"true": "on", "false": "off"}[self.default] if self.is_switch else self.default)


class Options:
    """All options of `program`, in the order in which they are shown; `titles` heads each section on a help page.

    keyed: names of options that a file may set for one KEY alone, in the table [SECTION."KEY"]; see `tables`.
    """

    def __init__(
        self, program: str, titles: Mapping[str, str], options: Iterable[Option], *, keyed: Iterable[str] = ()
    ) -> None:
        self.program = program
        self.titles = dict(titles)
        self._keyed = frozenset(keyed)
        self.all = tuple(option._replace(program=program) for option in options)
        self._names = {option.name: option for option in self.all}

    def by_name(self, name: str) -> Option | None:
        """The option of that name, written with - or _; None when there is none."""
        return self._names.get(name.strip().lower().replace("_", "-"))

    def as_flag(self, name: str, text: str) -> str:
        """The word of a command line that gives this option this text."""
        option = self.by_name(name)
        if option is None or not option.is_switch:
            return f"--{name}={text}"
        return f"--{name}" if parse_bool(text) else f"--{option.opposite or f'no-{name}'}"

    def nearest(self, word: str, known: Iterable[str]) -> str:
        """The hint for an unknown word: `did you mean …?`, or the choice, where it is short, when nothing is near."""
        import difflib

        known = sorted(known)
        close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
        if close:
            return f"did you mean {close[0]}?"
        listing = f"{self.program} mount --help lists what there is"
        return f"known are {', '.join(known)}" if len(known) <= 12 else listing

    def files(self, environ: Mapping[str, str]) -> list[str]:
        """Configuration files that are read when none is named, the weakest first. They need not exist."""
        home = environ.get("XDG_CONFIG_HOME") or (f"{environ['HOME']}/.config" if environ.get("HOME") else "")
        own = f"bootseer/{self.program}.toml"
        return [f"/etc/{own}", *([os.path.join(home, own)] if home else [])]

    def values(
        self, given: Given, environ: Mapping[str, str], files: Iterable[str | Path], config: str = ""
    ) -> dict[str, dict[str, Any]]:
        """Options that were set, by section and attribute. An option that nobody set is not in it.

        given: by option name, from flags and -o. files: read, the weakest first, unless `config` or the variable
        PROGRAM_CONFIG names one. Raises ConfigError, which names the place a bad value came from.
        """
        found: dict[str, tuple[str, str]] = {}
        for file, document in self._documents(environ, files, config):
            found |= self._from_file(file, document)
        found |= {o.name: (environ[o.variable], o.variable) for o in self.all if environ.get(o.variable)}
        found |= given
        values: dict[str, dict[str, Any]] = {option.section: {} for option in self.all}
        for name, (value, origin) in found.items():
            option = self._names[name]
            values[option.section][option.attribute] = _parsed(option, value, origin)
        return values

    def tables(
        self, section: str, environ: Mapping[str, str], files: Iterable[str | Path], config: str = ""
    ) -> dict[str, dict[str, Any]]:
        """The tables [SECTION."KEY"] of the files, by KEY and attribute. Arguments and errors as for `values`."""
        found: dict[str, dict[str, Any]] = {}
        for file, document in self._documents(environ, files, config):
            for key, table in document.get(section, {}).items():
                for name, value in table.items() if isinstance(table, dict) else ():
                    origin = f'{file}: {section}."{key}".{name}'
                    option = self.by_name(name)
                    if option is None or option.section != section or option.name not in self._keyed:
                        raise ConfigError(f"{origin} cannot be set", hint=self.nearest(name, self._keyed))
                    given = as_text(value, origin, many=option.many)
                    found.setdefault(key, {})[option.attribute] = _parsed(option, given, origin)
        return found

    def _documents(
        self, environ: Mapping[str, str], files: Iterable[str | Path], config: str
    ) -> Iterator[tuple[str | Path, dict[str, Any]]]:
        for file, document in documents(self.program, environ, files, config):
            for section, table in document.items():
                if section not in self.titles or not isinstance(table, dict):
                    raise ConfigError(f"{file}: {section!r} is no table of settings", hint=self._where(section))
            yield file, document

    def _from_file(self, file: str | Path, document: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
        found: dict[str, tuple[str, str]] = {}
        for section, table in document.items():
            known = [option.name for option in self.all if option.section == section]
            for key, value in table.items():
                if isinstance(value, dict) and self._keyed.intersection(known):
                    continue  # a table of one KEY
                option = self.by_name(key)
                if option is None or option.section != section:
                    raise ConfigError(f"{file}: unknown key {key!r} in [{section}]", hint=self._where(key, known))
                found[option.name] = (as_text(value, f"{file}: {key}", many=option.many), f"{file}: {section}.{key}")
        return found

    def _where(self, word: str, known: Iterable[str] = ()) -> str:
        """The hint for a word that does not belong where it stands in a file."""
        option = self.by_name(word)
        if option is not None:
            return f"it belongs in [{option.section}]"
        return self.nearest(word.replace("_", "-"), known or {option.section for option in self.all})


def _parsed(option: Option, given: str, origin: str) -> Any:
    try:
        return option.parse(given)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error.message}", hint=error.hint) from None
