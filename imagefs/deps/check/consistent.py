"""Whether the distributions of an installation fit one another: each finds what it requires, in a version it can use.

The question of `pip check`, answered from the same files with the same library. Nothing is run, so it can be answered
for a container from outside, where no pip is installed (uv needs none), and for a directory of `--target` without what
else its interpreter has.
"""

from __future__ import annotations

import email.parser
import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from imagefs.deps.check.finding import Finding

__all__ = ["Described", "check_consistent", "describe", "describe_folder", "describe_site"]

_DESCRIBING = (".dist-info", ".egg-info")


class Described(NamedTuple):
    """A distribution as its metadata tells. requires: as it is written there."""

    name: str
    version: str
    requires: tuple[str, ...]


def describe(metadata: bytes) -> Described:
    """From a METADATA file, whose body, the readme, is not parsed."""
    head = email.parser.BytesHeaderParser().parsebytes(metadata)
    return Described(
        str(head["Name"] or ""), str(head["Version"] or ""), tuple(map(str, head.get_all("Requires-Dist", ())))
    )


def describe_folder(folder: str) -> Described | None:
    """From a directory NAME.dist-info, or NAME.egg-info of old; None for one that does not say. Raises OSError."""
    for name in ("METADATA", "PKG-INFO"):
        path = os.path.join(folder, name)
        if os.path.isfile(path) and not os.path.islink(path):
            with open(path, "rb") as metadata:
                return describe(metadata.read())
    return None


def describe_site(site: str) -> list[Described]:
    """The distributions in a directory that modules are imported from; none where there is none. Raises OSError."""
    if not os.path.isdir(site):
        return []
    folders = [os.path.join(site, name) for name in sorted(os.listdir(site)) if name.endswith(_DESCRIBING)]
    return [described for folder in folders if (described := describe_folder(folder)) is not None]


def check_consistent(
    distributions: Iterable[Described], beside: Iterable[Described], environment: Mapping[str, str]
) -> list[Finding]:
    """One finding for each requirement of `distributions` that is not met.

    beside: what else is found where they are imported, behind them. environment: the interpreter's values for the
    markers of requirements, by name.
    """
    own = list(distributions)
    versions: dict[str, str] = {canonicalize_name(one.name): one.version for one in (*beside, *own)}
    found = []
    for one in own:
        unmet = (_unmet(text, versions, environment) for text in one.requires)
        found += [Finding("conflict", f"{one.name} {one.version}", what) for what in unmet if what]
    return sorted(set(found))


def _unmet(text: str, versions: Mapping[str, str], environment: Mapping[str, str]) -> str:
    try:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({**environment, "extra": ""}):
            return ""
    except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName) as error:
        return f"requires {text!r}, which cannot be understood: {str(error).splitlines()[0]}"
    version = versions.get(canonicalize_name(requirement.name))
    if version is None:
        return f"requires {requirement.name}, which is not installed"
    try:
        fits = requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        fits = not requirement.specifier
    return "" if fits else f"requires {requirement.name}{requirement.specifier}, and {version} is installed"
