"""Rules of the checks: files that belong to no package, the verdict on publication, and its messages."""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Collection, Iterable, Sequence

import pytest

from imagefs.deps.check.rules import (
    KINDS,
    Finding,
    FindingKind,
    check_orphans,
    distributions_in,
    find_sites,
    judge,
    outcome_findings,
)
from imagefs.deps.inventory import FileFacts

SITE = "lib/python3.11/site-packages"
INFO = f"{SITE}/alpha-1.0.dist-info"
OWNED = {f"{SITE}/alpha/__init__.py", f"{SITE}/alpha/sub/deep.py", f"{INFO}/METADATA", f"{INFO}/RECORD", "bin/alpha"}


def entries_of(paths: Iterable[str], removed: Iterable[str] = ()) -> dict[str, FileFacts]:
    """Empty files with these paths, whiteouts, and the directories above them."""
    found = {"": _facts(stat.S_IFDIR | 0o755)}
    for mode, path in [*((stat.S_IFREG, path) for path in paths), *((stat.S_IFCHR, path) for path in removed)]:
        found[path] = _facts(mode | 0o644)
        while path := posixpath.dirname(path):
            found[path] = _facts(stat.S_IFDIR | 0o755)
    return found


def _facts(mode: int) -> FileFacts:
    return FileFacts(mode, 0, 0, 0, 1, 1, 0, 0, 0)


def orphans(
    paths: Iterable[str], owned: Collection[str], given: Sequence[str] = (), allowed: Sequence[str] = ()
) -> dict[str, str]:
    entries = entries_of([*paths, *owned])
    sites = find_sites(entries, given)
    distributions = [one for site in sites for one in distributions_in(entries, site)]
    return {one.subject: one.what for one in check_orphans(entries, sites, distributions, owned, allowed)}


CACHE = f"{SITE}/alpha/sub/__pycache__"
ENVIRONMENT = ["pyvenv.cfg", "bin/python", "bin/python3.11", "bin/activate.fish", "bin/Activate.ps1", "include/x.h"]
BESIDE = ["alpha/__init__.py", "alpha-1.0.dist-info/RECORD", "bin/alpha"]  # programs, as with --target


@pytest.mark.parametrize(
    ("paths", "owned", "found"),
    [
        ([], OWNED, {}),
        # a package without what describes it, as a killed pip leaves it
        (
            [f"{SITE}/beta/__init__.py", f"{SITE}/beta/core.py", f"{SITE}/single.py"],
            OWNED,
            {f"{SITE}/beta": "2 files", f"{SITE}/single.py": ""},
        ),
        ([f"{SITE}/beta/__init__.py"], [], {f"{SITE}/beta": "1 files"}),
        (["beta/__init__.py"], [], {}),  # may be anything
        ([f"{SITE}/alpha/sub/new.py"], OWNED, {f"{SITE}/alpha/sub/new.py": ""}),
        # bytecode goes with its source
        ([f"{CACHE}/deep.cpython-311.pyc", f"{CACHE}/deep.cpython-311.opt-1.pyc"], OWNED, {}),
        ([f"{CACHE}/gone.cpython-311.pyc"], OWNED, {f"{CACHE}/gone.cpython-311.pyc": ""}),
        ([f"{SITE}/alpha/deep.pyc"], OWNED, {f"{SITE}/alpha/deep.pyc": ""}),  # imported without a source
        # files that installers write without a word
        ([f"{INFO}/INSTALLER", f"{INFO}/REQUESTED", f"{INFO}/direct_url.json", f"{SITE}/_virtualenv.pth"], OWNED, {}),
        ([f"{INFO}/evil.py", f"{SITE}/INSTALLER"], OWNED, {f"{INFO}/evil.py": "", f"{SITE}/INSTALLER": ""}),
        # programs of a virtual environment, and of a directory that is none
        (ENVIRONMENT, OWNED, {}),
        ([*ENVIRONMENT, "bin/beta"], OWNED, {"bin/beta": ""}),
        (["bin/beta"], OWNED, {}),
        ([], BESIDE, {}),
        (["bin/beta"], BESIDE, {"bin/beta": ""}),
        # a namespace that packages share
        (
            ["google/protobuf/any.py"],
            ["google/cloud/storage.py", "google/auth.py", "auth-1.0.dist-info/RECORD"],
            {"google/protobuf/any.py": ""},
        ),
    ],
)
def test_files_that_belong_to_no_package(paths: list[str], owned: Collection[str], found: dict[str, str]) -> None:
    assert orphans(paths, owned) == found


def test_what_the_user_says_of_files() -> None:
    assert orphans(["beta/__init__.py"], [], given=["/"]) == {"beta": "1 files"}
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


@pytest.mark.parametrize("kind", KINDS)
def test_any_doubt_stands_against_it(kind: FindingKind) -> None:
    verdict = judge([Finding(kind, "the/path", "the reason")])
    assert verdict.publish is (kind in ("unmet", "bytecode"))
    assert "the/path: the reason" in verdict.lines[0]


def test_one_line_for_each_kind_the_most_important_first() -> None:
    found = [
        Finding("bytecode", "template.py"),
        Finding("secret", ".netrc"),
        Finding("record", "a"),
        Finding("record", "b"),
    ]
    verdict = judge(found)
    assert not verdict.publish
    assert [line.split(":")[0] for line in verdict.lines] == [
        "files are not what their packages say",
        "secrets would be published",
        "sources that do not compile have no bytecode",
    ]
    assert "a, b" in verdict.lines[0]


def test_of_many_some_are_told() -> None:
    verdict = judge(Finding("orphan", str(number)) for number in range(100))
    assert "0, 1, 2, and 97 more (" in verdict.lines[0]


def test_what_an_installer_left_is_named() -> None:
    assert judge(outcome_findings(0, [])) == (True, ())
    verdict = judge(outcome_findings(3, [(77, "redis-server *:6379"), (78, "")]))
    assert verdict.lines[0] == "the installer failed: exit status 3"
    assert "77 (redis-server *:6379), 78" in verdict.lines[1]
