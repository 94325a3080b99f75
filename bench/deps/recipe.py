"""What the benchmark installs, and what of it a job imports. Pure.

The packages are pinned in requirements.txt: what a job that trains a language model installs, without torch, which is
part of its image. So they are installed as they stand, without what they require besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["INSTALLER", "Recipe", "recipes"]

INSTALLER = "pip==26.3"
"""What stands beside uv, whose version is that of the checkout."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """`pins` are installed; `modules` are imported. `older`: pins of the versions that some of them had before."""

    name: str
    pins: tuple[str, ...]
    modules: tuple[str, ...]
    older: tuple[str, ...]

    def variants(self) -> list[list[str]]:
        """What a job installed over time, one upgrade after the other; the last ones are the pins."""
        return [_with(self.pins, self.older[number:]) for number in range(len(self.older) + 1)]

    def everything(self) -> list[str]:
        """Each pin of any variant."""
        return sorted({*self.pins, *self.older})


_MODULES = (
    "numpy",
    "pandas",
    "pyarrow",
    "datasets",
    "transformers",
    "tokenizers",
    "wandb",
    "pydantic",
    "requests",
)
_OLDER = ("certifi==2026.7.22", "requests==2.34.1", "pandas==3.1.0", "transformers==5.22.2")

_FEW = (
    "certifi",
    "charset-normalizer",
    "click",
    "idna",
    "markdown-it-py",
    "mdurl",
    "pygments",
    "pyyaml",
    "requests",
    "rich",
    "urllib3",
)
_FEW_OLDER = ("certifi==2026.7.22", "click==8.5.0", "requests==2.34.1", "rich==14.3.4")
_FEW_MODULES = ("requests", "rich", "yaml", "click")


def recipes(text: str) -> dict[str, Recipe]:
    """By name, from the requirements file."""
    pins = tuple(line for line in text.splitlines() if line)
    few = tuple(pin for pin in pins if _name(pin) in _FEW)
    made = (
        Recipe("standard", pins, _MODULES, _OLDER),
        Recipe("quick", few, _FEW_MODULES, _FEW_OLDER),
    )
    return {recipe.name: recipe for recipe in made}


def _with(pins: Iterable[str], others: Sequence[str]) -> list[str]:
    """`pins`, of which some have the versions of `others`."""
    known = {_name(pin): pin for pin in others}
    return [known.get(_name(pin), pin) for pin in pins]


def _name(pin: str) -> str:
    return pin.partition("==")[0]
