"""Reading layers: what tar can say about a file comes through exactly."""

from __future__ import annotations

import logging
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from imagefs.build.layers import LayerEntry, entries
from imagefs.errors import BuildError, HostileLayer
from imagefs.settings import LayerLimits
from tests.support.images.layers import directory, file, layer


def read(path: Path, data: bytes) -> list[LayerEntry]:
    path.write_bytes(data)
    return list(entries(str(path), LayerLimits()))


def test_times_are_exact(tmp_path: Path) -> None:
    members = [
        file("a", pax_headers={"mtime": "1700000000.123456789"}),
        file("b", pax_headers={"mtime": "-1.5"}),
        file("c", mtime=-7),
    ]
    found = [
        (entry.inode.mtime, entry.inode.mtime_ns) for entry in read(tmp_path / "l", layer(*members)) if entry.inode
    ]
    assert found == [(1700000000, 123456789), (-2, 500000000), (-7, 0)]


def test_attributes_come_byte_by_byte(tmp_path: Path) -> None:
    capability = bytes.fromhex("0100000200040000000000000000000000000000")
    for value in (capability, b"\xfe=\n\xff", b""):
        header = {"SCHILY.xattr.security.capability": value.decode("utf-8", "surrogateescape")}
        (entry,) = read(tmp_path / "l", layer(file("a", pax_headers=header)))
        assert entry.inode is not None
        assert entry.inode.xattrs == ((b"security.capability", value),)


def test_attributes_that_a_link_cannot_have_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    header = {f"SCHILY.xattr.{name}": "value" for name in ("user.note", "trusted.note", "system.posix_acl_access")}
    kinds = {"file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE, "pipe": tarfile.FIFOTYPE}
    members = []
    for name, kind in kinds.items():
        member, data = file(name, pax_headers=header)
        member.type, member.linkname = kind, "file" if kind == tarfile.SYMTYPE else ""
        members.append((member, data))
    with caplog.at_level(logging.WARNING):
        found = {
            entry.parts[0]: [name for name, _ in entry.inode.xattrs]
            for entry in read(tmp_path / "l", layer(*members))
            if entry.inode
        }
    every = [b"system.posix_acl_access", b"trusted.note", b"user.note"]
    assert found == {b"file": every, b"folder": every, b"link": [b"trusted.note"], b"pipe": [b"trusted.note"]}
    assert len(caplog.records) == 1
    assert "user.note of link and 3 more" in caplog.text


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_and_owners_of_any_size(tmp_path: Path, form: int) -> None:
    name = "d/" * 100 + "n" * 200
    odd = b"not \xff utf-8".decode("utf-8", "surrogateescape")
    big = 4294967294
    found = read(tmp_path / "l", layer(file(name, uid=big, gid=big), file(odd), form=form))
    assert found[0].parts == tuple(name.encode().split(b"/"))
    assert found[0].inode is not None
    assert (found[0].inode.uid, found[0].inode.gid) == (big, big)
    assert found[1].parts == (b"not \xff utf-8",)


def test_devices_and_modes(tmp_path: Path) -> None:
    members = [
        (tarfile.CHRTYPE, stat.S_IFCHR, (1, 3)),
        (tarfile.BLKTYPE, stat.S_IFBLK, (259, 1_000_000)),
        (tarfile.FIFOTYPE, stat.S_IFIFO, (0, 0)),
    ]
    data = layer(
        *(file(str(n), type=kind, mode=0o4755, devmajor=d[0], devminor=d[1]) for n, (kind, _, d) in enumerate(members))
    )
    for entry, (_, kind, device) in zip(read(tmp_path / "l", data), members, strict=True):
        assert entry.inode is not None
        assert (entry.inode.mode, entry.inode.rdev) == (kind | 0o4755, device)


@pytest.mark.parametrize("version", ["0.0", "0.1", "1.0", "gnu"])
def test_sparse_files(tmp_path: Path, version: str) -> None:
    with (tmp_path / "sparse").open("wb") as out:
        out.truncate(50 << 20)
        for at in (0, 20 << 20, (50 << 20) - 10):
            out.seek(at)
            out.write(b"0123456789")
    how = ["--format=gnu"] if version == "gnu" else ["--format=pax", f"--sparse-version={version}"]
    subprocess.run(["tar", "-cSf", "l", *how, "sparse"], cwd=tmp_path, check=True)
    assert (tmp_path / "l").stat().st_size < 1 << 20
    (entry,) = entries(str(tmp_path / "l"), LayerLimits())
    assert entry.content is not None
    assert entry.content.size == 50 << 20
    with entry.content.open() as found, (tmp_path / "sparse").open("rb") as expected:
        while data := expected.read(1 << 20):
            assert found.read(len(data)) == data
        assert found.read(1) == b""
        found.seek(20 << 20)
        assert found.read(10) == b"0123456789"


def test_a_damaged_archive_is_an_error(tmp_path: Path) -> None:
    data = layer(directory("d"), file("d/a", b"x" * 5000))
    with pytest.raises(BuildError, match="no tar archive, or a damaged one"):
        read(tmp_path / "l", b"\1" * 2000)
    with pytest.raises(BuildError, match="unexpected end of data"):
        read(tmp_path / "m", data[:1500])


def test_endless_headers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HostileLayer, match="headers are longer"):
        read(tmp_path / "l", layer(file("a", pax_headers={"comment": "x" * (2 << 20)})))
