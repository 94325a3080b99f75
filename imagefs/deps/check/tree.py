"""All checks of an installed tree at once, among them secrets, privileged files, and writes outside the targets.

Secrets are files that others must not read, by name and by content. A file that a RECORD names and whose digest is
right came with a package, from where others get it too: packages do ship keys and addresses, for their tests. So only
other files are looked into, and what an installer writes about where a package came from.

Files that a container's installer wrote outside the targets that were declared for it are lost to whoever mounts the
snapshot of the targets alone, so they are told, file by file. Files that programs write for a while only, or could make
anew, do not count.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from imagefs.deps.check.distributions import (
    check_consistent,
    check_editable,
    check_records,
    describe_folder,
    describe_site,
)
from imagefs.deps.check.rules import Finding, check_orphans, distributions_in, find_sites, inside, prefix_of
from imagefs.deps.inventory import OPAQUE, FileFacts, Inventory

__all__ = [
    "IGNORED",
    "TRANSIENT",
    "Findings",
    "Installation",
    "check_outside",
    "check_privileged",
    "check_secrets",
    "check_tree",
    "matches",
    "secret_content",
    "secret_name",
]

_NAMES = {
    ".netrc": "passwords of hosts",
    "_netrc": "passwords of hosts",
    ".git-credentials": "passwords of repositories",
    ".pypirc": "passwords of package indexes",
    "pip.conf": "settings of pip, which may name an index with its password",
    "pip.ini": "settings of pip, which may name an index with its password",
    ".npmrc": "tokens of package indexes",
    ".pgpass": "passwords of databases",
    "id_rsa*": "a private key of ssh",
    "id_dsa*": "a private key of ssh",
    "id_ecdsa*": "a private key of ssh",
    "id_ed25519*": "a private key of ssh",
}
_PATHS = {
    "*.aws/credentials": "keys of AWS",
    "*.docker/config.json": "passwords of registries",
    "*.kube/config": "keys of a cluster",
    "*gcloud/application_default_credentials.json": "keys of Google Cloud",
    "*huggingface/token": "a token of Hugging Face",
}
_LIMIT = 1 << 20
"""Bytes of a file that is looked into: nothing that people or installers write settings into is larger."""

_KEY = re.compile(rb"-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY( BLOCK)?-----")
_ADDRESS = re.compile(rb"\b[a-z][a-z0-9+.-]{1,20}://([^\s/?#@:'\"<>{}$]*):([^\s/?#@'\"<>]{1,200})@[^\s/@'\"<>]")
_TOKEN_ADDRESS = re.compile(rb"\bhttps?://[A-Za-z0-9_-]{20,}@[^\s/@'\"<>]")
_TOKEN = re.compile(
    rb"\b(AKIA|ASIA)[A-Z0-9]{16}\b"  # AWS
    rb"|\bgh[pousr]_[A-Za-z0-9]{36,}\b|\bgithub_pat_[A-Za-z0-9_]{50,}|\bglpat-[A-Za-z0-9_-]{20,}"  # GitHub, GitLab
    rb"|\bpypi-AgE[A-Za-z0-9_-]{50,}|\bhf_[A-Za-z0-9]{30,}\b"  # PyPI, Hugging Face
    rb"|\bxox[baprs]-[A-Za-z0-9-]{10,}"  # Slack
)
_PLACEHOLDER = re.compile(rb"[*x.]+|pass(word|wd)?|secret|token|\$.*|%.*|\{.*|<.*", re.IGNORECASE)
_TOLD = ("direct_url.json", "uv_build.json", "uv_cache.json")
"""Of installers, about where a distribution came from. They have digests, but from no package."""


def check_secrets(inventory: Inventory, verified: Collection[str]) -> list[Finding]:
    """One finding for each file of a tree. verified: paths whose bytes came with a package."""
    found = []
    for path, facts in inventory.entries.items():
        if not facts.is_file or path.endswith(".pyc"):
            continue  # bytecode says what its source says
        if path in verified and posixpath.basename(path) not in _TOLD:
            continue
        what = secret_name(path)
        if not what and 0 < facts.size <= _LIMIT:
            try:
                with open(inventory.path(path), "rb") as file:
                    what = secret_content(file.read(_LIMIT))
            except OSError as error:
                what = f"cannot be read: {error.strerror}"
        if what:
            found.append(Finding("secret", path, what))
    return sorted(found)


def secret_name(path: str) -> str:
    """The kind of secret that a file of this name holds; "" for nothing."""
    for pattern, what in _NAMES.items():
        if fnmatch.fnmatchcase(posixpath.basename(path), pattern) and not path.endswith(".pub"):
            return what
    return next((what for pattern, what in _PATHS.items() if fnmatch.fnmatchcase(path, pattern)), "")


def secret_content(data: bytes) -> str:
    """The kind of secret in a text; "" for nothing, or for what is no text."""
    if b"\0" in data:
        return ""
    if _KEY.search(data):
        return "a private key"
    if _TOKEN.search(data):
        return "a token"
    if _TOKEN_ADDRESS.search(data) or any(_passwords(data)):
        return "an address with a password"
    return ""


def _passwords(data: bytes) -> Iterator[bytes]:
    for match in _ADDRESS.finditer(data):
        if not _PLACEHOLDER.fullmatch(match[2]):
            yield match[2]


TRANSIENT = (
    *("/tmp", "/var/tmp", "/run", "/var/run", "/dev", "/proc", "/sys"),  # noqa: S108 memory, or the kernel's
    *("/root/.cache", "/home/*/.cache", "/var/cache"),  # pip's and uv's are here
    *("/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/etc/mtab"),  # runtimes mount theirs there
)
"""Patterns of what is never captured, but where a target lies inside of it."""

IGNORED = (*TRANSIENT, "*/__pycache__")
"""Patterns of what may be written outside targets: also bytecode of the interpreter and the installer."""


def matches(path: str, patterns: Sequence[str]) -> bool:
    """Tells whether an absolute path matches one of these, which are as a shell's but that * stands for / too. One that
    matches a directory holds for all below it."""
    return any(fnmatch.fnmatchcase(path, one) or fnmatch.fnmatchcase(path, f"{one}/*") for one in patterns)


def check_outside(
    inventory: Inventory, targets: Sequence[str], ignored: Sequence[str] = IGNORED, lower: str = ""
) -> list[Finding]:
    """One finding for each change in an upper directory that is in none of `targets`, absolute paths, nor ignored.

    lower: where the image is mounted that the upper directory was above: a directory that is as there was only copied
    for something in it. Without it, directories count only when they hide what is there.
    """
    wanted = [target.strip("/") for target in targets]
    found = []
    for path, facts in sorted(inventory.entries.items()):
        if (
            not path
            or any(inside(path, target) or inside(target, path) for target in wanted)
            or matches(f"/{path}", ignored)
        ):
            continue
        if what := _change(inventory, path, facts, lower):
            found.append(Finding("outside", f"/{path}", what))
    return found


def _change(inventory: Inventory, path: str, facts: FileFacts, lower: str) -> str:
    """The change there; "" for nothing."""
    if facts.is_whiteout:
        return "removed"
    if not facts.is_directory:
        return "written"
    if OPAQUE in os.listxattr(inventory.path(path)):
        return "replaced"
    if not lower:
        return ""
    try:
        before = os.lstat(os.path.join(lower, path))
    except FileNotFoundError:
        return "made"
    same = (before.st_mode, before.st_uid, before.st_gid) == (facts.mode, facts.uid, facts.gid)
    return "" if same else "changed"


_CAPABILITIES = "security.capability"


class Installation(NamedTuple):
    """Facts about a tree besides its files.

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
    """items: what was found, for `rules.judge`. distributions: names with versions."""

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


def _privilege(inventory: Inventory, path: str, facts: FileFacts) -> str:
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
    """Tells whether what is imported from there may import from elsewhere; most virtual environments keep to
    themselves."""
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
