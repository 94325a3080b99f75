"""A directory with everything in it that a file system can hold; and the facts by which two trees are compared."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import stat
from pathlib import Path
from typing import Any

KIB, MIB = 1 << 10, 1 << 20


def make(root: Path) -> None:
    """Fill `root`. As root it has devices, owners, capabilities and trusted attributes too."""
    chance = random.Random(11)
    sizes = (0, 1, 100, 2048, 2049, 4095, 4096, 4097, 65535, 65536, 65537, 131071, 131072, 200_000, 3 * MIB + 5)
    (root / "files").mkdir()
    for size in sizes:
        (root / "files" / f"{size}").write_bytes(chance.randbytes(size))
    (root / "zeros").write_bytes(bytes(700 * KIB))
    with (root / "sparse").open("wb") as file:
        file.truncate(64 * MIB)
        for at in (0, 10 * MIB + 7, 63 * MIB):
            file.seek(at)
            file.write(chance.randbytes(5000))
    deep = root
    for _ in range(40):
        deep /= "deeper"
        deep.mkdir()
    (deep / "end").write_text("the end")
    (root / ("n" * 255)).write_text("a long name")
    (root / os.fsdecode(b"not \xff\xfe utf-8")).write_text("bytes")
    (root / "new\nline and \\ and ünï").write_text("odd")
    (root / "many").mkdir()
    for number in range(3000):
        (root / "many" / f"module_{number:05}.py").write_bytes(chance.randbytes(chance.randrange(0, 9000)))
    (root / "empty").mkdir()
    (root / "link").symlink_to("files/100")
    (root / "dangling").symlink_to("/nowhere/" + "x" * 4000)
    os.link(root / "files/200000", root / "hard")
    os.link(root / "files/200000", root / "many/hard")
    os.link(root / "files/100", root / "hard-small")
    os.mkfifo(root / "fifo", 0o640)
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(root)  # the path of a socket is short
        listener.bind("socket")
        os.chdir(here)
    os.setxattr(root / "files/1", "user.colour", b"blue\0green")
    os.setxattr(root / "files/65537", "user.long", chance.randbytes(2000))
    os.setxattr(root / "empty", "user.on-a-directory", b"")
    (root / "files/4096").chmod(0o4755)
    (root / "files/4097").chmod(0o2711)
    (root / "empty").chmod(0o1777)
    if os.geteuid() == 0:
        _as_root(root)
    for path, when in (("files/100", -86400_000000000 * 365 - 1), ("zeros", 1_700_000_000_123456789), ("empty", 0)):
        os.utime(root / path, ns=(when, when))
    os.utime(root / "link", ns=(5_000000007, 5_000000007), follow_symlinks=False)


def _as_root(root: Path) -> None:
    os.mknod(root / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(root / "disk", stat.S_IFBLK | 0o660, os.makedev(259, 1_000_000))
    os.chown(root / "files/2048", 4294967294, 4294967294)
    os.chown(root / "files/2049", 1000, 70000)
    os.chown(root / "link", 7, 8, follow_symlinks=False)
    os.setxattr(root / "files/65536", "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))
    os.setxattr(root / "files/65536", "trusted.secret", b"t")
    os.chmod(root / "files/2048", 0o4755)


def facts(root: Path, *, times: bool = True) -> dict[bytes, tuple[Any, ...]]:
    """Everything about every name below `root`, hardlinks by the first of their names."""
    found: dict[bytes, tuple[Any, ...]] = {}
    first: dict[int, bytes] = {}
    top = os.fsencode(root)
    stack = [b""]
    while stack:
        relative = stack.pop()
        path = top + b"/" + relative if relative else top
        status = os.lstat(path)
        kind = stat.S_IFMT(status.st_mode)
        content: object = None
        if kind == stat.S_IFREG:
            with open(path, "rb") as file:
                content = (status.st_size, hashlib.file_digest(file, "sha256").hexdigest())
        elif kind == stat.S_IFLNK:
            content = os.readlink(path)
        elif kind == stat.S_IFDIR:
            names = sorted(os.listdir(path))
            content = names
            stack += [relative + b"/" + name if relative else name for name in reversed(names)]
        elif kind in (stat.S_IFCHR, stat.S_IFBLK):
            content = status.st_rdev
        attributes = {
            name: os.getxattr(path, name, follow_symlinks=False) for name in os.listxattr(path, follow_symlinks=False)
        }
        found[relative] = (
            *(oct(status.st_mode), status.st_uid, status.st_gid, _links(status), attributes, content),
            status.st_mtime_ns if times else None,
            first.setdefault(status.st_ino, relative) if kind != stat.S_IFDIR else None,
        )
    return found


def differences(shown: Path, expected: Path) -> dict[bytes, tuple[Any, Any]]:
    """The facts of both trees about each name of which they are not the same."""
    ours, theirs = facts(shown), facts(expected)
    return {
        path: (ours.get(path), theirs.get(path))
        for path in ours.keys() | theirs.keys()
        if ours.get(path) != theirs.get(path)
    }


def _links(status: os.stat_result) -> int | None:
    """Names of an inode; of a directory only some file systems count them."""
    return None if stat.S_ISDIR(status.st_mode) else status.st_nlink
