"""Contents of the images of the benchmark. Pure.

Each has Debian's base system, Python, and one or two layers of wheels, and comes in two builds: the second has a patch
upgrade of one package and is installed anew, so that every byte code file of its wheels differs too, as after any
rebuild. Wheels are pinned in wheels.txt by their digests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["BASE", "BUILDS", "JOB_RECIPES", "RECIPES", "SUITE", "Recipe", "base_reference", "pins", "reference"]

SUITE = "bookworm"
BASE = "python3"  # the Debian package of the second layer
BUILDS = (1, 2)
_MAKING = 1  # raise it when images are made in another way


@dataclass(frozen=True, slots=True)
class Recipe:
    """`modules` are imported at the start; `wheels` holds the pins of each layer over Python; `upgrade` the one that
    takes the place of another version of it in build 2; `stubs`: whether torch needs stand-ins for CUDA's libraries."""

    name: str
    modules: tuple[str, ...]
    wheels: tuple[tuple[str, ...], ...]
    upgrade: str
    stubs: bool = False

    def layers(self, build: int) -> list[list[str]]:
        """The pins of `build`, layer by layer."""
        name = self.upgrade.partition("==")[0]
        renewed = {pin: self.upgrade for layer in self.wheels for pin in layer if pin.partition("==")[0] == name}
        return [[renewed.get(pin, pin) if build == 2 else pin for pin in layer] for layer in self.wheels]


_SCIENTIFIC = (
    "numpy==2.3.5",
    "scipy==1.16.3",
    "pandas==2.3.2",
    "python-dateutil==2.9.0.post0",
    "pytz==2025.2",
    "six==1.17.0",
    "tzdata==2025.2",
)
_TORCH = (
    "torch==2.15.0",
    "filelock==4.2.11",
    "fsspec==2026.9.0",
    "jinja2==3.1.6",
    "markupsafe==3.0.4",
    "mpmath==1.4.1",
    "networkx==3.6.1",
    "setuptools==84.2.1",
    "sympy==1.14.0",
    "typing-extensions==4.16.0",
)
_IMPORTS = ("numpy", "scipy.sparse", "pandas")
_NUMPY = "numpy==2.4.6"  # also one of the packages that a job installs: its modules see one version wherever they begin
# To install packages, and to read checkpoints.
_JOB = ("pip==26.3", "safetensors==0.8.0", "hdfs-native==0.14.7", "typing-extensions==4.16.0")
_JOB_SCIENTIFIC = (_NUMPY, *_SCIENTIFIC[1:])

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("quick", ("numpy",), (("numpy==2.3.4",),), "numpy==2.3.5"),
        Recipe("standard", _IMPORTS, (_SCIENTIFIC,), "pandas==2.3.3"),
        Recipe("large", (*_IMPORTS, "torch"), (_SCIENTIFIC, _TORCH), "pandas==2.3.3", stubs=True),
    )
}

JOB_RECIPES = {
    "quick": Recipe("job-quick", (), ((_NUMPY, *_JOB),), ""),
    "standard": Recipe("job-standard", (), (_JOB_SCIENTIFIC, _JOB), ""),
    "large": Recipe("job-large", (), (_JOB_SCIENTIFIC, _TORCH, _JOB), "", stubs=True),
}
"""Images of the job of `bench startup`, by its size. They have one build."""


def pins(text: str) -> dict[str, str]:
    """The lines of a file of requirements with digests, by their `name==version`."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return {line.split()[0]: line for line in lines}


def reference(recipe: Recipe, build: int, contents: Mapping[str, str]) -> str:
    """The tag of an image in the layout: another one whenever anything that it is made from changes.

    `contents` are the texts of the files that go into it, by name.
    """
    return f"{recipe.name}-{build}-{_digest([recipe.modules, recipe.layers(build), recipe.stubs, dict(contents)])}"


def base_reference() -> str:
    """The tag of what is below all layers of wheels."""
    return f"base-{_digest([])}"


def _digest(made_from: Sequence[object]) -> str:
    text = json.dumps([_MAKING, SUITE, BASE, *made_from], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
