"""A repository that is cloned into a mount."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.integration.mount.test_write_programs import Kept, kept
from tests.support.checkout import CHECKOUT

__all__ = ["kept"]

pytestmark = pytest.mark.root


@pytest.mark.mount
@pytest.mark.slow
def test_a_clone_of_this_repository_compares_equal(kept: Kept, tmp_path: Path) -> None:
    mounted, _ = kept("striped", staged=True)
    for folder in (mounted.path / "clone", tmp_path / "clone"):
        subprocess.run(["git", "clone", "--quiet", "--depth=1", f"file://{CHECKOUT}", folder], check=True)
    for arguments in (["diff", "--quiet"], ["diff", "--quiet", "--cached"], ["fsck", "--strict"]):
        subprocess.run(["git", "-C", mounted.path / "clone", *arguments], check=True, capture_output=True)
    subprocess.run(["diff", "-r", "-x", ".git", mounted.path / "clone", tmp_path / "clone"], check=True)
