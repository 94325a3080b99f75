"""References to images: `STORE#TAG` or `STORE#DIGEST`, and the platform that an image is for.

A store is a URL or a directory; the last `#` parts it from the name, so a directory may hold others in its own. A
digest may have `sha256:` in front. In a registry `oci://HOST/NAME:TAG` and `oci://HOST/NAME@sha256:DIGEST` name images
too. A platform is written as image indexes write it: `linux/amd64`, `linux/arm64/v8`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from stripefs.errors import ConfigError
from stripefs.records import NamedTuple
from stripefs.settings import redact

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from typing import Any

__all__ = ["TAG", "Platform", "Reference", "parse_reference", "parse_store"]

TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
"""The form of a tag, which a digest has too."""


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


_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "i686": "386", "armv7l": "arm", "armv6l": "arm"}


class Platform(NamedTuple):
    """Operating system, architecture and, where one was asked for, variant."""

    system: str = "linux"
    architecture: str = "amd64"
    variant: str = ""

    @classmethod
    def current(cls) -> Platform:
        """Of this machine, whatever its variant."""
        machine = os.uname().machine
        return cls(architecture=_MACHINES.get(machine, machine))

    @classmethod
    def parse(cls, text: str) -> Platform:
        """From `OS/ARCHITECTURE[/VARIANT]`. Raises ConfigError."""
        parts = text.split("/")
        if not 2 <= len(parts) <= 3 or not all(parts):
            raise ConfigError(f"{text!r} is no platform", hint="write one such as linux/amd64 or linux/arm64/v8")
        return cls(*parts)

    def fits(self, entry: Mapping[str, Any] | None) -> bool:
        """Tells whether an index's entry for this `platform` object is for us. One that says nothing is for all."""
        said = entry or {}
        return (
            said.get("os", self.system) == self.system
            and said.get("architecture", self.architecture) == self.architecture
            and (not self.variant or said.get("variant", self.variant) == self.variant)
        )

    def __str__(self) -> str:
        return "/".join(filter(None, (self.system, self.architecture, self.variant)))
