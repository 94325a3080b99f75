"""Optional packages: which extra of the distribution `bootseer` brings each, and the error where one is missing.

The table follows `[project.optional-dependencies]` in pyproject.toml. A package that several extras bring has the one
that most of its importers belong to.
"""

from __future__ import annotations

import importlib.util

from stripefs.errors import ConfigError

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


def missing(error: ImportError) -> ConfigError | None:
    """The error that names the extra to install; None where `error` tells of no optional package that is missing."""
    package = (error.name or "").partition(".")[0]
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
