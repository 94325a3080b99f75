"""Files that others must not read, by name and by content.

What a RECORD names and whose digest is right came with a package, from where others get it too: packages do ship keys
and addresses, for their tests. So only other files are looked into, and what an installer writes about where a package
came from. Pure, but for `check_secrets`, which reads them.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Collection, Iterator

from imagefs.deps.check.finding import Finding
from imagefs.deps.inventory import Inventory

__all__ = ["check_secrets", "secret_content", "secret_name"]

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
    """What a file of this name holds that others must not read; "" for nothing."""
    for pattern, what in _NAMES.items():
        if fnmatch.fnmatchcase(posixpath.basename(path), pattern) and not path.endswith(".pub"):
            return what
    return next((what for pattern, what in _PATHS.items() if fnmatch.fnmatchcase(path, pattern)), "")


def secret_content(data: bytes) -> str:
    """What there is in a text that others must not read; "" for nothing, or for what is no text."""
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
