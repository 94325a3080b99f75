"""Each test file of the checkout is collected."""

from __future__ import annotations

from fnmatch import fnmatch

import pytest

from tests.support.checkout import CHECKOUT


def test_no_folder_of_tests_is_passed_over(pytestconfig: pytest.Config) -> None:
    patterns = pytestconfig.getini("norecursedirs")
    folders = {
        part for path in (CHECKOUT / "tests").rglob("test_*.py") for part in path.relative_to(CHECKOUT).parts[:-1]
    }
    assert not [folder for folder in sorted(folders) if any(fnmatch(folder, pattern) for pattern in patterns)]
