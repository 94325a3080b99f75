"""Optional packages: which extra of the distribution `bootseer` brings each; and the errors where a module is missing.

The table follows `[project.optional-dependencies]` in pyproject.toml. A package that several extras bring has the one
that most of its importers belong to.
"""

from __future__ import annotations

import importlib.util

from stripefs.errors import ConfigError, StripefsError

__all__ = ["EXTRAS", "missing", "require"]

EXTRAS = {
    "pyfuse3": "mount",
    "lz4": "images",
    "packaging": "images",
    "pip_requirements_parser": "images",
    "zstandard": "images",
    "numpy": "arrow",
    "pyarrow": "arrow",
    "fsspec": "fsspec",
    "google": "containerd",
    "grpc": "containerd",
}
"""The extra by the name under which its package is imported."""


_OWN = ("stripefs", "imagefs")


def missing(error: ImportError, remedy: str = "run it again") -> StripefsError | None:
    """The error that tells what to do about a module that is missing; None for one of a package that is no option.

    For an optional package it names the extra to install. A module of this program that is not there, or not as those
    that are loaded know it, is of another version: the program was upgraded in place meanwhile, which takes the
    `remedy`.
    """
    package = (error.name or "").partition(".")[0]
    if package in _OWN:
        return StripefsError(f"the program is not whole, as when it was upgraded meanwhile: {error}", hint=remedy)
    if not isinstance(error, ModuleNotFoundError) or package not in EXTRAS:
        return None
    return _lacks(package)


def require(package: str) -> None:
    """Raise ConfigError where this optional package is not installed. Does not import it."""
    if importlib.util.find_spec(package) is None:
        raise _lacks(package)


def _lacks(package: str) -> ConfigError:
    hint = f"pip install 'bootseer[{EXTRAS[package]}]'"
    return ConfigError(f"the Python package {package} is not installed", hint=hint)
