"""For which machines an image is: `linux/amd64`, `linux/arm64/v8`, as image indexes write it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stripefs.errors import ConfigError

__all__ = ["Platform"]

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "i686": "386", "armv7l": "arm", "armv6l": "arm"}


@dataclass(frozen=True, slots=True)
class Platform:
    """Operating system, architecture and, where one was asked for, variant."""

    system: str = "linux"
    architecture: str = "amd64"
    variant: str = ""

    @classmethod
    def here(cls) -> Platform:
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
        """Whether an index's entry for this `platform` object is for us. One that says nothing is for all."""
        said = entry or {}
        return (
            said.get("os", self.system) == self.system
            and said.get("architecture", self.architecture) == self.architecture
            and (not self.variant or said.get("variant", self.variant) == self.variant)
        )

    def __str__(self) -> str:
        return "/".join(filter(None, (self.system, self.architecture, self.variant)))
