"""All checks of a tree, in one go."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from imagefs.deps.check.consistent import check_consistent, describe_folder, describe_site
from imagefs.deps.check.editable import check_editable
from imagefs.deps.check.finding import Finding
from imagefs.deps.check.orphans import check_orphans
from imagefs.deps.check.record import check_records
from imagefs.deps.check.secrets import check_secrets
from imagefs.deps.check.sites import distributions_in, find_sites, prefix_of
from imagefs.deps.inventory import Facts, Inventory

__all__ = ["Findings", "Installation", "check_privileged", "check_tree"]

_CAPABILITIES = "security.capability"


class Installation(NamedTuple):
    """What there is to know about a tree besides its files.

    at: the absolute path that its top had for the installer, "/" for that of a container. sites: directories below it
    that modules are imported from, where that does not show, as for --target. environment: values of the interpreter
    for the markers of requirements. beside: directories of this host from which that interpreter imports too.
    allowed: patterns of paths of the tree that need not belong to a package. checked: whether bytecode is compared with
    its source at each import. tolerant: whether packages that do not fit one another are only told, as they are after
    an installation that was to leave out what they require. setuid: whether files may give privileges.
    """

    at: str
    environment: Mapping[str, str]
    sites: Sequence[str] = ()
    beside: Sequence[str] = ()
    allowed: Sequence[str] = ()
    checked: bool = False
    tolerant: bool = False
    setuid: bool = False


class Findings(NamedTuple):
    """items: what was found, for `verdict.judge`. distributions: names with versions."""

    items: tuple[Finding, ...]
    distributions: tuple[str, ...]


def check_tree(inventory: Inventory, installation: Installation) -> Findings:
    """Check what was installed into the directory of `inventory`.

    Paths in findings are those of the inventory. Raises OSError for what describes distributions and cannot be read.
    """
    entries = inventory.entries
    sites = find_sites(entries, installation.sites)
    distributions = [one for site in sites for one in distributions_in(entries, site)]
    owned, findings = check_records(inventory, distributions, installation.at)
    findings += check_orphans(entries, sites, distributions, owned.names, installation.allowed)
    findings += check_secrets(inventory, owned.verified)
    findings += check_editable(inventory, distributions, checked=installation.checked)
    findings += [] if installation.setuid else check_privileged(inventory)
    for site in sites:
        folders = [inventory.path(one.folder) for one in distributions if one.site == site]
        described = [one for folder in folders if (one := describe_folder(folder)) is not None]
        others = installation.beside if _sees_others(inventory, site) else ()
        beside = [one for folder in others for one in describe_site(folder)]
        conflicts = check_consistent(described, beside, installation.environment)
        findings += [one._replace(kind="unmet") for one in conflicts] if installation.tolerant else conflicts
    return Findings(tuple(findings), tuple(one.name for one in distributions))


def check_privileged(inventory: Inventory) -> list[Finding]:
    """One finding for each program that runs with more rights than who starts it has, and for each device.

    A directory with the bit of setgid gives none. Raises OSError.
    """
    return [
        Finding("privileged", path, why)
        for path, facts in sorted(inventory.entries.items())
        if (why := _privilege(inventory, path, facts))
    ]


def _privilege(inventory: Inventory, path: str, facts: Facts) -> str:
    if stat.S_ISBLK(facts.mode) or (stat.S_ISCHR(facts.mode) and not facts.is_whiteout):
        return "a device"
    if not facts.is_file:
        return ""
    if facts.mode & stat.S_ISUID:
        return "setuid"
    if facts.mode & stat.S_ISGID and facts.mode & stat.S_IXGRP:
        return "setgid"
    if facts.mode & 0o111 and _CAPABILITIES in os.listxattr(inventory.path(path)):
        return "with capabilities"
    return ""


def _sees_others(inventory: Inventory, site: str) -> bool:
    """Whether what is imported from there may import from elsewhere; most virtual environments keep to themselves."""
    prefix = prefix_of(site)
    settings = posixpath.join(prefix or "", "pyvenv.cfg")
    if prefix is None or settings not in inventory.entries or not inventory.entries[settings].is_file:
        return True
    with open(inventory.path(settings), encoding="utf-8", errors="replace") as file:
        lines = [line.partition("=") for line in file]
    return any(
        key.strip().lower() == "include-system-site-packages" and value.strip().lower() == "true"
        for key, _, value in lines
    )
