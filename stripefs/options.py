"""Options declared once, and the resolution of their values: the basis of every command's configuration.

`Options` is the one declaration of a program: flags, variables, TOML keys, `-o` words, `--help` and the tables in
docs/reference all come from it. An option takes its value from the first of these that names it:

    a flag or an -o word  >  the environment  >  ~/.config/bootseer/NAME.toml  >  /etc/bootseer/NAME.toml
                          >  its default

Every source is reduced to text first, so one parser an option decides what is valid, and its complaint is put behind
the name of the place the text came from. A file says `version = 1`, then one table a section; a key that is no option
is refused, because a misspelt limit that is silently ignored is found in production. Variables are not checked that
way: Kubernetes makes variables of its own for a service of the same name. The parsers are those of `stripefs.parsers`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping

from stripefs.errors import ConfigError
from stripefs.parsers import parse_bool
from stripefs.records import NamedTuple

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

__all__ = ["Given", "Option", "Options"]

Given = Mapping[str, tuple[str, str]]
"""Values by option name: (text, where it was given, for messages)."""


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
                    given = _as_text(value, origin, many=option.many)
                    found.setdefault(key, {})[option.attribute] = _parsed(option, given, origin)
        return found

    def _documents(
        self, environ: Mapping[str, str], files: Iterable[str | Path], config: str
    ) -> Iterator[tuple[str | Path, dict[str, Any]]]:
        for file, document in _files_of(self.program, environ, files, config):
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
                found[option.name] = (_as_text(value, f"{file}: {key}", many=option.many), f"{file}: {section}.{key}")
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


def _files_of(
    program: str, environ: Mapping[str, str], files: Iterable[str | Path], config: str
) -> Iterator[tuple[str | Path, dict[str, Any]]]:
    """The files of a program that are there, in their order, with what they hold but for the version.

    files: those that are read unless `config` or the variable PROGRAM_CONFIG names one. Raises ConfigError.
    """
    variable = f"{program.upper()}_CONFIG"
    named = config or environ.get(variable, "")
    for file in [os.path.expanduser(named)] if named else files:
        try:
            with open(file, "rb") as opened:
                content = opened.read()
            import tomllib  # not every command has a file to read

            document = tomllib.loads(content.decode())
        except FileNotFoundError:
            if named:
                raise ConfigError(f"{file} does not exist", hint=f"check --config and {variable}") from None
            continue
        except OSError as error:
            raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
        except ValueError as error:  # not UTF-8, or not TOML
            raise ConfigError(f"{file} is not TOML: {error}") from error
        version = document.pop("version", None)
        if version != 1 or isinstance(version, bool):
            what = "has no version" if version is None else f"has version {version!r}"
            raise ConfigError(f"{file} {what}", hint=f"this {program} reads files that say version = 1")
        yield file, document


def _as_text(value: object, origin: str, *, many: bool = False) -> str:
    """A value as a user would write it on a command line. many: a list of texts is joined with commas."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    if many and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ",".join(value)
    raise ConfigError(f"{origin} must be text, a number, true or false")
