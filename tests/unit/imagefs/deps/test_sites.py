"""Files that belong to no package."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from imagefs.deps.check.rules import check_orphans, distributions_in, find_sites
from tests.unit.imagefs.deps.entries import entries_of

SITE = "lib/python3.11/site-packages"
INFO = f"{SITE}/alpha-1.0.dist-info"
OWNED = {f"{SITE}/alpha/__init__.py", f"{SITE}/alpha/sub/deep.py", f"{INFO}/METADATA", f"{INFO}/RECORD", "bin/alpha"}


def orphans(
    paths: Iterable[str], owned: Collection[str], given: Sequence[str] = (), allowed: Sequence[str] = ()
) -> dict[str, str]:
    entries = entries_of([*paths, *owned])
    sites = find_sites(entries, given)
    distributions = [one for site in sites for one in distributions_in(entries, site)]
    return {one.subject: one.what for one in check_orphans(entries, sites, distributions, owned, allowed)}


def test_all_that_a_record_names_is_no_orphan() -> None:
    assert orphans([], OWNED) == {}


def test_a_package_without_what_describes_it_is_one() -> None:
    """As a killed pip leaves it."""
    found = orphans([f"{SITE}/beta/__init__.py", f"{SITE}/beta/core.py", f"{SITE}/single.py"], OWNED)
    assert found == {f"{SITE}/beta": "2 files", f"{SITE}/single.py": ""}


def test_it_is_one_also_where_nothing_else_is() -> None:
    assert orphans([f"{SITE}/beta/__init__.py"], []) == {f"{SITE}/beta": "1 files"}
    assert orphans(["beta/__init__.py"], []) == {}  # may be anything
    assert orphans(["beta/__init__.py"], [], given=["/"]) == {"beta": "1 files"}


def test_a_file_inside_a_package_is_told_by_its_path() -> None:
    assert orphans([f"{SITE}/alpha/sub/new.py"], OWNED) == {f"{SITE}/alpha/sub/new.py": ""}


def test_bytecode_goes_with_its_source() -> None:
    here = f"{SITE}/alpha/sub/__pycache__"
    assert orphans([f"{here}/deep.cpython-311.pyc", f"{here}/deep.cpython-311.opt-1.pyc"], OWNED) == {}
    assert orphans([f"{here}/gone.cpython-311.pyc"], OWNED) == {f"{here}/gone.cpython-311.pyc": ""}
    assert orphans([f"{SITE}/alpha/deep.pyc"], OWNED) == {f"{SITE}/alpha/deep.pyc": ""}  # imported without a source


def test_what_installers_write_without_a_word_is_known() -> None:
    known = [f"{INFO}/INSTALLER", f"{INFO}/REQUESTED", f"{INFO}/direct_url.json", f"{SITE}/_virtualenv.pth"]
    assert orphans(known, OWNED) == {}
    assert orphans([f"{INFO}/evil.py", f"{SITE}/INSTALLER"], OWNED) == {f"{INFO}/evil.py": "", f"{SITE}/INSTALLER": ""}


def test_programs_of_a_virtual_environment() -> None:
    known = ["pyvenv.cfg", "bin/python", "bin/python3.11", "bin/activate.fish", "bin/Activate.ps1", "include/site/x.h"]
    assert orphans(known, OWNED) == {}
    assert orphans([*known, "bin/beta"], OWNED) == {"bin/beta": ""}
    assert orphans(["bin/beta"], OWNED) == {}  # of a directory that is no environment


def test_programs_beside_packages() -> None:
    """As with --target."""
    owned = {"alpha/__init__.py", "alpha-1.0.dist-info/RECORD", "bin/alpha"}
    assert orphans([], owned) == {}
    assert orphans(["bin/beta"], owned) == {"bin/beta": ""}


def test_namespace_packages_are_shared() -> None:
    owned = {"google/cloud/storage.py", "google/auth.py", "auth-1.0.dist-info/RECORD"}
    assert orphans(["google/protobuf/any.py"], owned) == {"google/protobuf/any.py": ""}


def test_a_user_may_allow_some() -> None:
    paths = [f"{SITE}/sitecustomize.py", f"{SITE}/mine/a.py", f"{SITE}/mine/b/c.py"]
    assert orphans(paths, OWNED, allowed=["*/sitecustomize.py", f"{SITE}/mine"]) == {}


def test_a_target_may_be_an_environment() -> None:
    """The installer does not know beforehand."""
    assert find_sites(entries_of(OWNED), given=[""]) == [SITE]
    assert find_sites(entries_of(["alpha/__init__.py", f"env/{SITE}/x.py"]), given=["", "env"]) == [""]
    assert find_sites(entries_of(["alpha/__init__.py", "alpha/site-packages/x.py"]), given=["/"]) == [""]
    assert find_sites(entries_of(["usr/lib/python3/dist-packages/x.py"]), given=["usr"]) == [
        "usr/lib/python3/dist-packages"
    ]


def test_what_was_removed_from_an_image_is_no_file() -> None:
    removed = [f"{SITE}/old-1.0.dist-info", f"{SITE}/old", f"{SITE}/alpha/gone.py", f"{SITE}/older-1.0.egg-info"]
    entries = entries_of(OWNED, removed)
    distributions = distributions_in(entries, SITE)
    assert [one.name for one in distributions] == ["alpha 1.0"]
    assert check_orphans(entries, [SITE], distributions, OWNED) == []


def test_distributions_inside_of_packages_are_parts_of_these() -> None:
    """setuptools ships others with their RECORDs, which name files that it left out."""
    vendored = f"{SITE}/alpha/_vendor/gamma-2.0.dist-info/RECORD"
    entries = entries_of([*OWNED, vendored])
    assert find_sites(entries) == [SITE]
    assert [one.name for one in distributions_in(entries, SITE)] == ["alpha 1.0"]
