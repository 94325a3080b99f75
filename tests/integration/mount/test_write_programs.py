"""Programs that write, through real mounts of a local directory, in both layouts; every byte is compared afterwards.

Writing in order needs the mount's memory alone, so those programs run on mounts without staging.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stripefs.errors import ConfigError
from stripefs.settings import WriteSettings
from tests.support.checkout import CHECKOUT
from tests.support.write_programs import IN_ORDER, OUT_OF_ORDER, Place, Program, calls
from tests.support.write_programs.place import MIB
from tests.support.written_mounts import content, hidden, unreferenced, writable
from tests.tools.mounts import Mounted, Mounts, drop_cache, eventually

LAYOUTS = ("concat", "striped")


class Kept:
    """Mounts that the tests of this module share: one for each layout, with staging and without."""

    def __init__(self, mounts: Mounts) -> None:
        self.mounts = mounts
        self._mounted: dict[tuple[str, bool], Mounted] = {}

    def __call__(self, layout: str, staged: bool) -> tuple[Mounted, Path]:
        """A mount, and its source."""
        source = self.mounts.folder / f"source-{layout}-{staged}"
        if (layout, staged) not in self._mounted:
            source.mkdir()
            staging = self.mounts.folder / "staging" if staged else None
            settings = writable(
                self.mounts, f"file://{source}", layout=layout, unit=MIB, staging=staging, write_memory=64 * MIB
            )
            self._mounted[layout, staged] = self.mounts.start(settings).wait_ready()
        return self._mounted[layout, staged], source

    def close(self) -> None:
        for (layout, staged), mounted in self._mounted.items():
            source = self.mounts.folder / f"source-{layout}-{staged}"
            assert mounted.stop() == 0
            assert hidden(source) == []
            assert unreferenced(source) == set()
        self.mounts.forgive("--staging")  # the log names the option when it is missing
        self.mounts.close()
        staging = self.mounts.folder / "staging"
        assert not staging.exists() or os.listdir(staging) == [".stripefs-staging"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    with contextlib.closing(Kept(Mounts(tmp_path_factory.mktemp("programs")))) as made:
        yield made


def run(program: Program, mounted: Mounted, source: Path, aside: Path) -> None:
    """Run it in a folder of its own, and hold what is there against what must be: shown, shown afresh, and stored."""
    folder = mounted.path / program.__name__
    folder.mkdir()
    expected = program(Place(folder, aside))
    for name, data in expected.items():
        assert (folder / name).read_bytes() == data, f"{name} is not what was written"
        drop_cache(folder / name)
        assert (folder / name).read_bytes() == data, f"{name} is not what was written, past the page cache"
        assert (folder / name).stat().st_size == len(data)
        assert content(source, f"{program.__name__}/{name}") == data, f"{name} is not what was written, in the store"
    eventually(lambda: not hidden(source / program.__name__), "an end of hidden files")


@pytest.mark.mount
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("program", IN_ORDER)
def test_in_order(kept: Kept, tmp_path: Path, program: Program, layout: str) -> None:
    run(program, *kept(layout, staged=False), tmp_path)


@pytest.mark.mount
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("program", [*OUT_OF_ORDER, calls.appending])
def test_out_of_order(kept: Kept, tmp_path: Path, program: Program, layout: str) -> None:
    run(program, *kept(layout, staged=True), tmp_path)


@pytest.mark.mount
def test_files_that_look_like_those_of_a_mount_are_ordinary(kept: Kept) -> None:
    """The test data of this repository hold manifests, parts and lists of parts."""
    mounted, _ = kept("striped", staged=False)
    golden = CHECKOUT / "tests/golden"
    assert list(golden.glob("*.manifest"))
    subprocess.run(["cp", "-r", golden, mounted.path / "golden"], check=True)
    subprocess.run(["diff", "-r", golden, mounted.path / "golden"], check=True)


@pytest.mark.mount
def test_staging_on_a_mount_of_ours_is_refused(mounts: Mounts) -> None:
    first = mounts.mount()
    own = writable(mounts)
    for place in (str(first.path), str(first.path / "below"), own.mount.mountpoint):
        mounted = mounts.start(own._replace(write=WriteSettings(staging=place)))
        with pytest.raises(ConfigError, match=r"--staging .* is on "):
            mounted.wait_ready()
