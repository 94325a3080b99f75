"""Installers that a command line runs, and the options that it gives them. Pure.

Known are `pip install` in all its spellings (`pip`, `pip3.11`, `python -m pip`), `uv pip install`, `uv pip sync` and
`uv sync`, behind whatever else stands on the line (`env`, `nice`, `sudo`). The meaning of an option is taken from
tables: one that is in none is taken for a switch, so that its value would be a requirement, and be looked at as one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

__all__ = ["Call", "calls", "decisive", "is_pip", "is_python", "joined", "options_among"]

_BOTH = {
    "-r": "requirement",
    "--requirement": "requirement",
    "-c": "constraint",
    "--constraint": "constraint",
    "--build-constraint": "constraint",
    "-e": "editable",
    "--editable": "editable",
    "-f": "find-links",
    "--find-links": "find-links",
    "-i": "index-url",
    "--index-url": "index-url",
    "--extra-index-url": "extra-index-url",
    "--group": "group",
    **dict.fromkeys((
        *("-C", "-t", "--cache-dir", "--config-setting", "--config-settings", "--keyring-provider"),
        *("--no-binary", "--only-binary", "--prefix", "--python", "--python-version", "--target", "--trusted-host"),
    ), ""),
}  # fmt: skip

_PIP = {
    **_BOTH,
    "--pypi-url": "index-url",
    "--requirements-from-script": "script",
    **dict.fromkeys((
        *("--abi", "--cert", "--client-cert", "--exists-action", "--global-option", "--implementation"),
        *("--install-option", "--log", "--platform", "--progress-bar", "--proxy", "--report", "--resume-retries"),
        *("--retries", "--root", "--root-user-action", "--src", "--timeout", "--upgrade-strategy", "--use-deprecated"),
        *("--use-feature", "--uploaded-prior-to"),
    ), ""),
}  # fmt: skip

_UV = {
    **_BOTH,
    "--requirements": "requirement",
    "--constraints": "constraint",
    "--override": "override",
    "--overrides": "override",
    "--exclude": "constraint",
    "--excludes": "constraint",
    "-b": "constraint",
    "--build-constraints": "constraint",
    "--index": "index",
    "--default-index": "default-index",
    "--torch-backend": "torch-backend",
    "--prerelease": "prerelease",
    "--only-group": "group",
    "--project": "project",
    "--directory": "directory",
    **dict.fromkeys((
        *("-p", "-P", "--allow-insecure-host", "--color", "--config-file", "--config-settings-package"),
        *("--exclude-newer", "--exclude-newer-package", "--extra", "--fork-strategy", "--index-strategy"),
        *("--link-mode", "--no-build-isolation-package", "--no-build-package", "--no-binary-package", "--no-extra"),
        *("--no-group", "--no-install-package", "--no-sources-package", "--package"),
        *("--python-platform", "--refresh-package", "--reinstall-package", "--resolution", "--upgrade-package"),
    ), ""),
}  # fmt: skip
"""Options that have a value, and what that is for; "" where it decides nothing that is not in the words themselves."""

_IDLE = re.compile(
    r"-[qv]+|--(quiet|verbose|no-input|no-color|disable-pip-version-check|no-python-version-warning|no-cache-dir|no-cache"
    r"|no-progress|debug)"
)

_IDLE_VALUED = frozenset((
    *("--progress-bar", "--timeout", "--retries", "--resume-retries", "--cache-dir", "--log", "--proxy", "--cert"),
    *("--client-cert", "--root-user-action", "--color", "--trusted-host", "--exists-action"),
))  # fmt: skip
"""Options that decide nothing about the result, without a value and with one."""

_MOVING = ("-C", "-D", "--chdir")  # of env and sudo

_ASSIGNED = re.compile(r"(PIP|UV)_\w+=")

_SWITCHES_OF_PYTHON = ("-W", "-X")  # and their values


class Call(NamedTuple):
    """An installer that is run, and what it is asked for.

    tool: pip, uv, or uv-project for `uv sync`. program: what runs the installer itself. requirements: each with whether
    it is editable. values: of options, by what they are for. switches: all other options, with a value or
    without. moved: it runs in another
    directory than what starts it, so nobody here knows what its relative paths name. variables: those of pip and uv
    that are set for it alone.
    """

    tool: str
    program: Sequence[str]
    requirements: Sequence[tuple[str, bool]]
    values: Mapping[str, Sequence[str]]
    switches: frozenset[str]
    moved: bool = False
    variables: Mapping[str, str] = {}


def calls(words: Sequence[str]) -> Iterator[Call]:
    """The installers that a command line runs; one at most, since what comes behind its name is for that."""
    for place, word in enumerate(words):
        rest = words[place + 1 :]
        found = None
        if is_pip(word):
            found = _call("pip", [word], rest, _PIP, ["install"])
        elif _name(word) == "uv":
            found = _uv([word], rest)
        elif is_python(word):
            found = _of_python(word, rest)
            if found is None:
                return
        if found is not None:
            moved = any(one.startswith(_MOVING) for one in words[:place])
            assigned = [one.partition("=") for one in words[:place] if _ASSIGNED.match(one)]
            yield found._replace(moved=moved, variables={name: value for name, _, value in assigned})
            return


def joined(setup: Sequence[str], command: Sequence[str]) -> Sequence[str]:
    """One program that runs both, one after the other."""
    return ["sh", "-c", f"{shlex.join(setup)} && {shlex.join(command)}"] if setup else command


def decisive(words: Sequence[str]) -> list[str]:
    """The words of a command line that runs an installer without those that decide nothing about the result."""
    found: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            return [*found, word, *rest]
        if word in _IDLE_VALUED:
            next(rest, "")
        elif not _IDLE.fullmatch(word) and word.partition("=")[0] not in _IDLE_VALUED:
            found.append(word)
    return found


def is_pip(word: str) -> bool:
    """Tells whether it is the name or path of a pip."""
    return bool(re.fullmatch(r"pip[\d.]*", _name(word)))


def is_python(word: str) -> bool:
    """Tells whether it is the name or path of an interpreter."""
    return bool(re.fullmatch(r"python[\d.]*", _name(word)))


def _name(word: str) -> str:
    return word.rpartition("/")[2]


def _of_python(word: str, rest: Sequence[str]) -> Call | None:
    name, behind = _module_in(rest)
    program = [word, *rest[: len(rest) - len(behind)]]
    if name == "uv":
        return _uv(program, behind)
    return _call("pip", program, behind, _PIP, ["install"]) if is_pip(name) else None


def _uv(program: Sequence[str], rest: Sequence[str]) -> Call | None:
    for tool, verbs in (("uv", ["pip", "install"]), ("uv", ["pip", "sync"]), ("uv-project", ["sync"])):
        if found := _call(tool, program, rest, _UV, verbs):
            # the files of `uv pip sync` are requirements files, and `pip install` may take them by place as well
            return _as_files(found) if verbs == ["pip", "sync"] else found
    return None


def _as_files(call: Call) -> Call:
    files = [*call.values.get("requirement", ()), *(text for text, editable in call.requirements if not editable)]
    return call._replace(requirements=(), values={**call.values, "requirement": files})


def _module_in(rest: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The module or script that an interpreter with these arguments runs, "" for none, and what that gets."""
    place = 0
    while place < len(rest) and rest[place].startswith("-"):
        word = rest[place]
        if word == "-m" and place + 1 < len(rest):
            return rest[place + 1], rest[place + 2 :]
        if word.startswith("-m"):
            return word[2:], rest[place + 1 :]
        if word.startswith("-c"):
            break
        place += 2 if word in _SWITCHES_OF_PYTHON else 1
    else:
        return (rest[place], rest[place + 1 :]) if place < len(rest) else ("", ())
    return "", ()


def _call(
    tool: str, program: Sequence[str], rest: Sequence[str], table: Mapping[str, str], verbs: Sequence[str]
) -> Call | None:
    """The call, None where it is not one of these verbs."""
    plain: list[str] = []
    editable: list[str] = []
    values: dict[str, list[str]] = {}
    switches: set[str] = set()
    words = iter(rest)
    for word in words:
        if word == "--":
            plain += words
        elif word == "-" or not word.startswith("-"):
            plain.append(word)
        else:
            option, value = _split(word, table)
            if option in table:
                value = next(words, "") if value is None else value
                purpose = table[option]
                if not purpose:
                    switches.add(option)
                elif purpose == "editable":
                    editable.append(value)
                else:
                    several = tool != "pip" and purpose == "find-links"
                    values.setdefault(purpose, []).extend(value.split(",") if several else [value])
            else:
                switches.add(option)
    if plain[: len(verbs)] != list(verbs):
        return None
    asked = [(text, False) for text in plain[len(verbs) :]] + [(text, True) for text in editable]
    return Call(tool, program, asked, values, frozenset(switches))


def _split(word: str, table: Mapping[str, str]) -> tuple[str, str | None]:
    """An option and the value that stands in the same word, None where it stands in the next one."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return name, value if equals else None
    for place, letter in enumerate(word[1:], 1):  # several in one word, of which the last may have a value
        if f"-{letter}" in table:
            return f"-{letter}", word[place + 1 :].removeprefix("=") or None
    return word, None


def options_among(
    words: Iterable[str], valued: Collection[str], switches: Collection[str], without: Collection[str] = ()
) -> list[str]:
    """The options in front of `--` that another command of the installer has too: those in `valued` with their values,
    and those in `switches`, but for those in `without`."""
    found: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            break
        name = word.partition("=")[0] if word.startswith("--") else word[:2]
        if name in valued:
            value = [next(rest, "")] if word == name else []
            found += [word, *value] if name not in without else []
        elif word in switches:
            found += [word] if word not in without else []
        elif name in ("-r", "-e", "-p", "-t", "-P") and word == name:
            next(rest, "")
    return found
