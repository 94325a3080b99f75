"""Parsers of option values: each takes the text of a value, and raises ConfigError for one that is not valid."""

from __future__ import annotations

import os
from collections.abc import Callable

from stripefs.errors import ConfigError
from stripefs.units import format_size, parse_duration, parse_rate, parse_size

__all__ = [
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

_GIB = 1 << 30
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


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


def _absolute(given: str) -> str:
    """A path, absolute: a daemon does not keep the directory it was started in. As `pathlib` writes it, which takes
    long to load."""
    path = os.path.expanduser(given)
    if path.startswith("~"):
        raise ConfigError(f"{given!r} is no path: there is no such user")
    if given and not path.startswith("/"):
        try:
            path = f"{os.getcwd()}/{path}"
        except FileNotFoundError:
            raise ConfigError(f"{given!r} is no path: the working directory is gone") from None
    path = "/" + "/".join(name for name in path.split("/") if name not in ("", "."))
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # too long, a loop of links, with a zero byte
        raise ConfigError(f"{given!r} is no path: {error}") from error
    return path


def existing_folder(given: str) -> str:
    """An existing directory, absolute."""
    path = _absolute(given)
    if given and not os.path.isdir(path):
        raise ConfigError(f"{path} is not a directory")
    return path if given else ""


def some_folder(given: str) -> str:
    """A directory, absolute, which is made where it is needed and missing; "" stands for itself."""
    path = _absolute(given)
    if given and os.path.exists(path) and not os.path.isdir(path):
        raise ConfigError(f"{path} is not a directory")
    return path if given else ""


def new_file(given: str) -> str:
    """A file that can be made, absolute."""
    path = _absolute(given)
    if given and (os.path.isdir(path) or not os.path.isdir(os.path.dirname(path))):
        raise ConfigError(f"{path} cannot be written", hint="name a file in an existing directory")
    return path if given else ""


def some_file(given: str) -> str:
    """A path that is no directory, absolute; "" stands for itself."""
    path = _absolute(given)
    if given and os.path.isdir(path):
        raise ConfigError(f"{path} is a directory")
    return path if given else ""


def store_urls(given: str) -> tuple[str, ...]:
    """URLs and directories of stores, with commas between them; directories are made absolute."""
    items = [item.strip() for item in given.split(",") if item.strip()]
    return tuple(item if "://" in item else _absolute(item) for item in items)


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
