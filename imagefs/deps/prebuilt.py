"""Commands that see directories otherwise than they are: writable without being changed, or as the wheels that were
built of them.

    python -m imagefs.deps.prebuilt FOLDER DIRECTORIES -- COMMAND

DIRECTORIES is a JSON object: paths, each with the folder of its stand-in (`stand_in`), "" for none. In a mount
namespace of its own each directory has an overlay above itself, at its own path, so that links out of it, paths beside
it and repositories around it are what they are without that. A stand-in covers the settings of a project with those of
a backend that hands out a wheel. Written files lie in FOLDER, which is its caller's to remove. Where the kernel, or
the rights of the user, do not allow overlays, the command runs on the directories themselves.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Mapping

from imagefs.plane import kernel_mounts
from imagefs.run import namespace
from stripefs.errors import MountError

__all__ = ["covering", "main", "stand_in"]

_PLACE = ".imagefs-wheel"
"""The directory in a stand-in that holds the wheel and its backend. uv takes no hidden directory for a project."""

_SETTINGS = {"requires": [], "build-backend": "handed_wheel", "backend-path": [_PLACE]}

_BACKEND = """\
import os
import shutil
import zipfile

NAME = {name!r}
WHEEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), NAME)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    shutil.copyfile(WHEEL, os.path.join(wheel_directory, NAME))
    return NAME


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    with zipfile.ZipFile(WHEEL) as wheel:
        members = [name for name in wheel.namelist() if name.partition("/")[0].endswith(".dist-info")]
        wheel.extractall(metadata_directory, members)
    return members[0].partition("/")[0]
"""

_TABLE = re.compile(r"(?ms)^[ \t]*\[[ \t]*build-system[ \t]*\].*?(?=^[ \t]*\[|\Z)")


def covering(folder: str, directories: Mapping[str, str]) -> list[str]:
    """The words before a command that sees these directories so. folder: a new one, for what it writes there."""
    return [sys.executable, "-P", "-m", __name__, folder, json.dumps(dict(directories)), "--"]


def stand_in(source: str, wheel: str, folder: str) -> bool:
    """Make the stand-in of a project, with its wheel, in a new folder. False, and no folder, for a project whose
    settings cannot be kept beside a build system of ours. Raises OSError."""
    try:
        with open(os.path.join(source, "pyproject.toml"), encoding="utf-8", newline="") as file:
            text = file.read()
    except FileNotFoundError:
        text = ""
    except UnicodeDecodeError:
        return False
    settings = _with_our_build_system(text)
    if settings is None:
        return False
    place = os.path.join(folder, _PLACE)
    os.makedirs(place)
    shutil.copyfile(wheel, os.path.join(place, os.path.basename(wheel)))
    with open(os.path.join(place, f"{_SETTINGS['build-backend']}.py"), "w", encoding="utf-8") as file:
        file.write(_BACKEND.format(name=os.path.basename(wheel)))
    with open(os.path.join(folder, "pyproject.toml"), "w", encoding="utf-8", newline="") as file:
        file.write(settings)
    return True


def _with_our_build_system(text: str) -> str | None:
    """A pyproject.toml that says what this one says of everything else; None where that is not to be had."""
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in _SETTINGS.items())
    changed = f"{_TABLE.sub('', text)}\n[build-system]\n{lines}"
    try:
        wanted = {**tomllib.loads(text), "build-system": _SETTINGS}
        return changed if tomllib.loads(changed) == wanted else None
    except (ValueError, RecursionError):
        return None


def main(words: list[str]) -> None:
    """The program, which becomes the command. Raises OSError."""
    end = words.index("--")
    (folder, told), command = words[:end], words[end + 1 :]
    directories = json.loads(told)
    here = os.getcwd()
    try:
        namespace.private_mounts()
        for number, (directory, above) in enumerate(_wanted(directories).items()):
            upper = os.path.join(folder, str(number))
            lowers = [above, directory] if above else [directory]
            kernel_mounts.mount_overlay(lowers, upper, directory, without_disk="memory", volatile=True)
    except (MountError, OSError) as error:
        if not any(directories.values()):
            sys.stderr.write(f"imagefs: the source is built where it lies: {error}\n")
    os.chdir(here)  # which may be inside of one of them
    os.execvp(command[0], command)  # noqa: S606


def _wanted(directories: Mapping[str, str]) -> dict[str, str]:
    """By their real paths, outer ones first; of those without a stand-in only those that are in no other one."""
    found: dict[str, str] = {}
    for path, above in sorted((os.path.realpath(path), above) for path, above in directories.items()):
        if above or not any(path.startswith(f"{other}/") for other in found):
            found[path] = above
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
