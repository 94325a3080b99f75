"""The tree that the kernel shows of an image is the one that `umoci unpack` makes of it, for one of every nastiness.

umoci is not the judge in these cases:

- Directories that no layer describes, and those in which it made such a one, have the time of unpacking.
- It reads pax records as Go does, which takes an attribute without a value for one that is not there.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.images import archives as tar
from tests.support.images import nasty_image
from tests.support.images.layers import layout
from tests.support.images.local_image import LocalImage, build_layout
from tests.support.images.nasty import facts
from tests.support.images.stores import images_in

pytestmark = [pytest.mark.mount, pytest.mark.root, pytest.mark.slow]

TIMES_OF_UNPACKING = nasty_image.IMPLICIT | {b"names", b"hidden", b"linked"}
EMPTY_ATTRIBUTE = b"attributes/many"
ATTRIBUTES, TIME = 4, 6  # where `facts` has them

Facts = dict[bytes, tuple[Any, ...]]


@contextlib.contextmanager
def mounted(source: Path, folder: Path) -> Iterator[Path]:
    """The tree of the image that is built of the layout at `source`."""
    images = images_in(folder / "store")
    digest = build_layout(source, images, folder / "tmp")
    with contextlib.closing(LocalImage(images, digest, folder / "mounted")) as image:
        assert image.fsck() == ""
        image.mount()
        yield image.mountpoint


def unpacked(source: Path, target: Path) -> Path:
    """The tree that umoci unpacks."""
    command = ["umoci", "raw", "unpack", "--image", f"{source}:nasty", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, umask=0o022)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def without(found: Facts, name: bytes, where: int) -> Facts:
    return {**found, name: (*found[name][:where], None, *found[name][where + 1 :])}


def test_the_tree_is_that_of_umoci(tmp_path: Path) -> None:
    with mounted(nasty_image.make(tmp_path / "image"), tmp_path) as tree:
        shown = facts(tree)
    expected = facts(unpacked(nasty_image.make(tmp_path / "twin", twin=True), tmp_path / "unpacked"))
    for name in TIMES_OF_UNPACKING:
        shown, expected = without(shown, name, TIME), without(expected, name, TIME)
    shown[EMPTY_ATTRIBUTE][ATTRIBUTES].pop("user.number-0")
    assert shown.keys() == expected.keys()
    assert not {name: (shown[name], expected[name]) for name in expected if shown[name] != expected[name]}


def test_a_directory_of_66_000_names(tmp_path: Path) -> None:
    """All of one file: more links than 16 bits tell."""
    names = [b"d/%06d-%s" % (number, b"n" * (number % 60)) for number in range(66_000)]
    first = tar.member(names[0], data=b"the one file", mtime=1)
    others = (tar.member(name, tar.LINK, link=names[0]) for name in names[1:])
    archive = tar.member(b"d", tar.DIRECTORY, mode=0o755) + first + b"".join(others) + tar.END
    with mounted(layout(tmp_path / "layout", [archive]), tmp_path) as tree:
        found = sorted(os.listdir(os.fsencode(tree / "d")))
        assert found == [name.removeprefix(b"d/") for name in sorted(names)]
        for name in (found[0], found[33_000], found[-1]):
            status = os.stat(os.fsencode(tree / "d") + b"/" + name)
            assert (status.st_nlink, status.st_size) == (66_000, 12)
        assert not (tree / "d/100000").exists()


def test_the_limits_of_what_an_inode_holds(tmp_path: Path) -> None:
    """Further than the file systems go onto which umoci unpacks."""
    large = {f"user.{number}": bytes([number]) * 65535 for number in range(3)}
    longest = "user." + "n" * 250
    archive = b"".join(
        (
            tar.file(b"large", data=b"l", xattrs=large),
            tar.file(b"long", tar.DIRECTORY, xattrs={longest: b"v"}),
            tar.file(b"link", tar.SYMLINK, link=b"x" * 4095, xattrs={"trusted.l": b"v" * 4000}),
            tar.file(b"n" * 255, data=b"x" * 2048, xattrs={"user.x": b"y" * 2100}),
            tar.END,
        )
    )
    with mounted(layout(tmp_path / "layout", [archive]), tmp_path) as tree:
        found = facts(tree)
        assert (tree / ("n" * 255)).read_bytes() == b"x" * 2048
    assert found[b"large"][ATTRIBUTES] == large
    assert found[b"long"][ATTRIBUTES] == {longest: b"v"}
    assert found[b"link"][5] == b"x" * 4095
    assert found[b"link"][ATTRIBUTES] == {"trusted.l": b"v" * 4000}
