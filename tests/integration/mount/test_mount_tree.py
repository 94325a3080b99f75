"""A real mount as programs see it: bytes, names, attributes, directories, extended attributes."""

from __future__ import annotations

import os
import random
import stat
import subprocess
from pathlib import Path

import pytest

from tests.support.write_programs.place import opened
from tests.tools.mounts import MIB, Mounts, sha256

pytestmark = pytest.mark.mount


def test_bytes_are_those_of_the_source(mounts: Mounts) -> None:
    """As a whole, by preads anywhere, and around the page cache."""
    rng = random.Random(7)
    for size in (0, 1, 4095, 4096, 4097, 3 * MIB + 5, 40 * MIB):
        (mounts.source / f"file{size}").write_bytes(rng.randbytes(size))
    data = rng.randbytes(9 * MIB + 123)
    (mounts.source / "data").write_bytes(data)
    mounted = mounts.mount()
    shown = mounted.path / "data"
    with opened(shown, os.O_RDONLY) as plain, opened(shown, os.O_RDONLY | os.O_DIRECT) as direct:
        for _ in range(100):
            offset, size = rng.randrange(len(data) + MIB), rng.randrange(2 * MIB)
            assert os.pread(plain, size, offset) == data[offset : offset + size]
        for block in (0, 4096, MIB, 9 * MIB, 10 * MIB):
            assert os.pread(direct, 64 << 10, block) == data[block : block + (64 << 10)]
    for file in mounts.source.iterdir():
        assert sha256(mounted.path / file.name) == sha256(file)
        assert (mounted.path / file.name).stat().st_size == file.stat().st_size


def test_names_of_any_bytes(mounts: Mounts) -> None:
    names = [bytes([byte]) * 3 for byte in range(1, 256) if byte not in b"/."] + [b"x" * 255, b" ", b"a\nb", b"\\040"]
    for name in names:
        with open(os.fsencode(mounts.source) + b"/" + name, "wb") as file:
            file.write(name)
    mounted = mounts.mount()
    root = os.fsencode(mounted.path)
    assert sorted(os.listdir(root)) == sorted(names)
    for name in names:
        with open(root + b"/" + name, "rb") as file:
            assert file.read() == name
    with pytest.raises(FileNotFoundError):
        os.stat(root + b"/absent")


def test_attributes_links_kinds_and_capacity(mounts: Mounts) -> None:
    """Inode numbers survive being forgotten, and a given owner applies to all."""
    file = mounts.source / "file"
    file.write_text("x")
    file.chmod(0o751)
    os.utime(file, ns=(1_600_000_000_123_456_789, 1_700_000_000_987_654_321))
    (mounts.source / "link").symlink_to("file")
    (mounts.source / "dir").mkdir(mode=0o700)
    (mounts.source / "dir" / "below").touch()
    os.mkfifo(mounts.source / "fifo")
    os.utime(mounts.source / "fifo", ns=(0, -(10**9)))
    mounted = mounts.mount(umask=0o022)
    shown, real = os.lstat(mounted.path / "file"), file.lstat()
    assert stat.filemode(shown.st_mode) == "-rwxr-x--x"
    assert (shown.st_size, shown.st_mtime_ns, shown.st_atime_ns) == (1, real.st_mtime_ns, 1_600_000_000_123_456_789)
    assert os.lstat(mounted.path / "fifo").st_mtime_ns == -(10**9)
    assert (shown.st_uid, shown.st_gid) == (real.st_uid, real.st_gid)
    assert os.readlink(mounted.path / "link") == "file"
    assert (mounted.path / "link").read_text() == "x"
    assert stat.S_ISDIR(os.lstat(mounted.path / "dir").st_mode)
    assert stat.S_ISFIFO(os.lstat(mounted.path / "fifo").st_mode)
    space, there = os.statvfs(mounted.path), os.statvfs(mounts.source)
    assert space.f_blocks * space.f_frsize == pytest.approx(there.f_blocks * there.f_frsize, rel=0.01)
    assert space.f_namemax == 255
    numbers = [os.stat(mounted.path / name).st_ino for name in ("dir", "dir/below")]
    mounted.stop()
    second = mounts.mount(uid=4321, gid=1234)
    assert [os.stat(second.path / name).st_ino for name in ("dir", "dir/below")] == numbers
    assert (os.stat(second.path / "file").st_uid, os.stat(second.path / "file").st_gid) == (4321, 1234)


@pytest.mark.parametrize("rw", [False, True])
def test_copies_take_no_attributes_along(mounts: Mounts, tmp_path: Path, rw: bool) -> None:
    source, target = mounts.source / "source", tmp_path / "target"
    (source / "dir").mkdir(parents=True)
    (source / "file").write_bytes(b"x" * (1 << 20))
    (source / "dir" / "small").write_bytes(b"y")
    # 256 blocks, whose places are more than a local file system takes as an attribute.
    mounted = mounts.mount(mounts.url("throttled+", "?hosts=3&rate=1GB/s&block-size=4KiB"), rw=rw)
    assert len(os.getxattr(mounted.path / "source/file", "user.stripefs.locations")) > 4096
    for number, copy in enumerate((["rsync", "-aX"], ["cp", "-a"], ["cp", "-a", "--preserve=all"])):
        made = target / str(number)
        made.parent.mkdir(exist_ok=True)
        done = subprocess.run([*copy, f"{mounted.path}/source", made], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        files = [path for path in made.rglob("*") if path.is_file()]
        assert sorted(path.name for path in files) == ["file", "small"]
        assert [os.listxattr(path) for path in made.rglob("*")] == [[]] * len(list(made.rglob("*")))


def test_a_long_listing_asks_nothing_of_each_file(mounts: Mounts) -> None:
    for number in range(300):
        (mounts.source / f"file{number}").touch()
    mounted = mounts.mount(attr_timeout=60.0)
    before = mounted.status()["requests"]["answered"]
    subprocess.run(["ls", "-l", mounted.path], check=True, stdout=subprocess.DEVNULL)
    for path in mounted.path.iterdir():
        with pytest.raises(OSError, match="not supported"):
            os.listxattr(path)
    assert mounted.status()["requests"]["answered"] - before < 50
