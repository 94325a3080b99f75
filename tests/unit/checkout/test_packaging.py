"""The description of the distribution: what its extras bring, its version, and the locks that follow from them."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import stripefs
from stripefs.errors import ConfigError
from stripefs.extras import EXTRAS, missing, require
from tests.support.checkout import CHECKOUT

PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
EXTRAS_OF_PROJECT = {name: list(map(Requirement, of)) for name, of in PROJECT["optional-dependencies"].items()}

IMPORTED_AS = {"google": "protobuf", "grpc": "grpcio"}
"""Distributions by the name of their package, where it is another one."""


def pinned(lock: str) -> dict[str, str]:
    """The versions in a lock by distribution."""
    text = (CHECKOUT / f"requirements/{lock}.lock").read_text()
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))


def test_each_optional_package_is_told_by_an_extra_that_brings_it() -> None:
    brought = {name: {canonicalize_name(one.name) for one in of} for name, of in EXTRAS_OF_PROJECT.items()}
    for package, extra in EXTRAS.items():
        assert canonicalize_name(IMPORTED_AS.get(package, package)) in brought[extra]
    told = {canonicalize_name(IMPORTED_AS.get(package, package)) for package in EXTRAS}
    assert set().union(*brought.values()) - {"bootseer"} == told


def test_all_is_all_extras() -> None:
    (everything,) = EXTRAS_OF_PROJECT["all"]
    assert everything.name == PROJECT["name"]
    assert everything.extras == EXTRAS_OF_PROJECT.keys() - {"all"}


def test_the_lock_of_the_image_has_all_that_the_package_needs() -> None:
    found = pinned("run")
    for requirement in (
        *map(Requirement, PROJECT["dependencies"]),
        *(one for of in EXTRAS_OF_PROJECT.values() for one in of),
    ):
        if requirement.name != PROJECT["name"]:
            assert requirement.specifier.contains(found[canonicalize_name(requirement.name)])


@pytest.mark.parametrize("lock", ["run", "demo"])
def test_locks_hold_the_versions_that_are_tested(lock: str) -> None:
    found, tested = pinned(lock), pinned("dev")
    assert {name: tested.get(name) for name in found} == found


def test_the_changelog_has_a_section_for_the_version() -> None:
    section = "Unreleased" if ".dev" in stripefs.__version__ else stripefs.__version__
    assert re.search(rf"^## \[{re.escape(section)}\]", (CHECKOUT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_a_package_of_an_extra_that_is_missing_is_told() -> None:
    error = missing(ModuleNotFoundError("No module named 'google.protobuf'", name="google.protobuf"))
    assert isinstance(error, ConfigError)
    assert str(error) == "the Python package google is not installed (pip install 'bootseer[containerd]')"


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'nothing'", name="nothing"),
        ImportError("cannot import name 'x' from 'lz4'", name="lz4"),
        ImportError("no name"),
    ],
)
def test_any_other_import_that_fails_is_told_as_it_is(error: ImportError) -> None:
    assert missing(error) is None


@pytest.mark.parametrize(
    "statement",
    ["import imagefs.earlier_name", "from stripefs.units import earlier_name", "import stripefs.units.earlier"],
)
def test_a_module_of_the_program_that_is_of_another_version_is_told(statement: str) -> None:
    with pytest.raises(ImportError) as caught:
        exec(statement)
    error = missing(caught.value)
    assert error is not None
    assert str(error).startswith("the program is not whole, as when it was upgraded meanwhile: ")
    assert error.hint == "run it again"


def test_what_is_required_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    require("lz4")
    monkeypatch.setitem(EXTRAS, "package_that_does_not_exist", "mount")
    with pytest.raises(ConfigError, match=r"package_that_does_not_exist is not installed"):
        require("package_that_does_not_exist")
