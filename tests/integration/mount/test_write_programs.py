"""Programs that write, through real mounts of a local directory, in both layouts; every byte is compared afterwards.

Writing in order needs the mount's memory alone, so those programs run on mounts without staging.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stripefs.errors import ConfigError
from stripefs.settings import WriteSettings
from tests.support.checkout import CHECKOUT
from tests.support.refusals import refused
from tests.support.write_programs import IN_ORDER, OUT_OF_ORDER, Place, Program, calls, commands
from tests.support.write_programs.place import MIB, opened, payload
from tests.support.written_mounts import content, hidden, unreferenced, writable
from tests.tools.mounts import Mounted, Mounts, drop_cache, eventually

LAYOUTS = ("concat", "striped")


def _name(program: Program) -> str:
    return program.__name__


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
@pytest.mark.parametrize("program", IN_ORDER, ids=_name)
def test_in_order(kept: Kept, tmp_path: Path, program: Program, layout: str) -> None:
    run(program, *kept(layout, staged=False), tmp_path)


@pytest.mark.mount
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("program", [*OUT_OF_ORDER, calls.appending], ids=_name)
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
@pytest.mark.parametrize("layout", LAYOUTS)
def test_out_of_order_without_staging(kept: Kept, tmp_path: Path, layout: str) -> None:
    """Refused at the call that is out of order, the old version stays, and the log names the option."""
    mounted, source = kept(layout, staged=False)
    folder = mounted.path / "refused"
    folder.mkdir()
    old = payload("old", 9 * MIB)
    (folder / "file").write_bytes(old)

    def seek_back(descriptor: int) -> None:
        os.write(descriptor, b"x" * 5000)
        os.pwrite(descriptor, b"y", 7)

    def leave_a_hole(descriptor: int) -> None:
        os.pwrite(descriptor, b"y", 5000)

    def change(descriptor: int) -> None:
        os.pwrite(descriptor, b"y", 7)

    def cut(descriptor: int) -> None:
        os.ftruncate(descriptor, 7)

    cases: list[tuple[Callable[[int], None], int]] = [
        (seek_back, os.O_WRONLY | os.O_TRUNC),
        (leave_a_hole, os.O_WRONLY | os.O_TRUNC),
        (change, os.O_RDWR),
        (cut, os.O_RDWR),
    ]
    for case, flags in cases:
        descriptor = os.open(folder / "file", flags)
        with refused(errno.EOPNOTSUPP):
            case(descriptor)
        try:
            os.close(descriptor)
        except OSError as error:
            assert error.errno == errno.EOPNOTSUPP  # noqa: PT017  once more, or never again
        eventually(lambda: not hidden(source / "refused"), "an end of hidden files")
        assert content(source, "refused/file") == old, case.__name__
    assert "--staging" in mounted.log_text()
    place = Place(folder, tmp_path)
    for program in (commands.sqlite, commands.zip_command):
        with pytest.raises((AssertionError, OSError, subprocess.SubprocessError)):
            program(place)
    with opened(folder / "file", os.O_RDONLY) as descriptor:
        assert os.pread(descriptor, 10, 0) == old[:10]


@pytest.mark.mount
def test_staging_that_is_full(mounts: Mounts) -> None:
    """ENOSPC at write; what was there stays; with room again the same file is written."""
    mounts.forgive("no room to stage", "could not be staged")
    old = payload("old", 2 * MIB)
    (mounts.source / "file").write_bytes(old)
    settings = writable(mounts, staging=mounts.folder / "staging", staging_size=8 * MIB)
    mounted = mounts.start(settings).wait_ready()
    shown = mounted.path / "file"
    blocker = os.open(mounted.path / "blocker", os.O_RDWR | os.O_CREAT)
    os.pwrite(blocker, bytes(5 * MIB), 100)
    descriptor = os.open(shown, os.O_RDWR)
    os.pwrite(descriptor, b"changed", 5)
    with refused(errno.ENOSPC):
        _write_at(descriptor, bytes(4 * MIB), MIB)
    with refused(errno.ENOSPC):
        os.close(descriptor)
    assert content(mounts.source, "file") == old
    os.close(blocker)
    with opened(shown, os.O_RDWR) as descriptor:
        os.pwrite(descriptor, b"changed", 5)
        _write_at(descriptor, bytes(4 * MIB), MIB)
    meant = old[:5] + b"changed" + old[12:MIB] + bytes(4 * MIB)
    assert content(mounts.source, "file") == shown.read_bytes() == meant
    assert content(mounts.source, "blocker") == bytes(5 * MIB + 100)
    assert os.listdir(mounts.folder / "staging") == [".stripefs-staging"]


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    """All of it: a write that finds no room for its end answers how much it wrote, and the next one why."""
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


@pytest.mark.mount
def test_staging_on_a_mount_of_ours_is_refused(mounts: Mounts) -> None:
    first = mounts.mount()
    own = writable(mounts)
    for place in (str(first.path), str(first.path / "below"), own.mount.mountpoint):
        mounted = mounts.start(own._replace(write=WriteSettings(staging=place)))
        with pytest.raises(ConfigError, match=r"--staging .* is on "):
            mounted.wait_ready()
