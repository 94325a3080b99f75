"""How users name an image: `STORE#TAG` or `STORE#DIGEST`.

A store is a URL or a directory; the last `#` parts it from the name, so a directory may hold others in its own. A
digest may have `sha256:` in front. In a registry
`oci://HOST/NAME:TAG` and `oci://HOST/NAME@sha256:DIGEST` name images too.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from stripefs.errors import ConfigError
from stripefs.settings import redact

__all__ = ["TAG", "Reference", "parse_reference", "parse_store"]

TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
"""What a tag looks like, and so what a digest looks like too."""


class Reference(NamedTuple):
    """An image by name, or with name "" a whole store. `store` is a URL or an absolute path."""

    store: str
    name: str = ""

    def __str__(self) -> str:
        """Fit for logs and messages: secrets in the URL do not show."""
        return redact(self.store) + (f"#{self.name}" if self.name else "")


def parse_reference(text: str, *, name: bool | None = True) -> Reference:
    """The store and the image in `text`. name: whether one must be named (True), must not be (False), or may (None).

    Raises ConfigError.
    """
    store, hash_sign, found = text.rpartition("#")
    if not hash_sign:
        store, found = _of_registry(text) if text.startswith("oci://") else (text, "")
    elif name is False and os.path.isdir(os.path.expanduser(text)):
        store, hash_sign, found = text, "", ""  # a directory that is called so
    found = found.removeprefix("sha256:")
    if not store:
        raise ConfigError(
            f"{redact(text)!r} names no store", hint="give a directory, or a URL such as s3://bucket/images"
        )
    if name is False and (hash_sign or found):
        raise ConfigError(
            f"{redact(text)!r} names an image where a store belongs", hint=f"leave {hash_sign or ':'}{found} out"
        )
    if name and not found:
        raise ConfigError(
            f"{redact(text)!r} names no image", hint="write STORE#TAG or STORE#DIGEST; `imagefs ls STORE` lists them"
        )
    if (hash_sign or found) and not TAG.fullmatch(found):
        raise ConfigError(
            f"{found!r} is neither a tag nor a digest",
            hint="a tag has at most 128 letters, digits, '.', '_' and '-'",
        )
    return Reference(_absolute(store), found)


def parse_store(text: str) -> str:
    """A store alone: a URL or an absolute path. Raises ConfigError."""
    return parse_reference(text, name=False).store


def _of_registry(text: str) -> tuple[str, str]:
    """The repository, and the tag or digest behind its name, "" for none."""
    place, mark, query = text.partition("?")
    head, slash, last = place.rpartition("/")
    last, _, found = last.partition("@") if "@" in last else last.partition(":")
    return (text, "") if head.endswith("/") else (f"{head}{slash}{last}{mark}{query}", found)


def _absolute(store: str) -> str:
    """A path made absolute, because a daemon leaves the directory it was started in; a URL as it is."""
    return store if "://" in store else os.path.abspath(os.path.expanduser(store))
