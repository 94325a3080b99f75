"""Reading layers: what tar can say about a file comes through exactly."""

from __future__ import annotations

import io
import logging
import stat
import subprocess
import tarfile
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefs.build.layers import LayerEntry, entries
from imagefs.settings import LayerLimits
from tests.support.examples import examples
from tests.support.images.layers import file, layer


def read(path: Path, data: bytes) -> list[LayerEntry]:
    path.write_bytes(data)
    return list(entries(str(path), LayerLimits()))


KINDS = {
    tarfile.REGTYPE: stat.S_IFREG,
    tarfile.DIRTYPE: stat.S_IFDIR,
    tarfile.FIFOTYPE: stat.S_IFIFO,
    tarfile.CHRTYPE: stat.S_IFCHR,
    tarfile.BLKTYPE: stat.S_IFBLK,
}
NAMES = st.binary(max_size=200).map(lambda part: b"n" + part.replace(b"/", b"-").replace(b"\0", b"-"))


@st.composite
def members(draw: st.DrawFn, form: int) -> tuple[tuple[tarfile.TarInfo, bytes], tuple[object, ...]]:
    """A member as the standard library writes it, and the facts of its entry."""
    large = form != tarfile.USTAR_FORMAT
    parts = draw(st.lists(NAMES, min_size=1, max_size=4 if large else 1))
    parts = parts if large else [part[:99] for part in parts]
    kind, data = draw(st.sampled_from(list(KINDS))), draw(st.binary(max_size=1100))
    data = data if kind == tarfile.REGTYPE else b""
    mode, owner = draw(st.integers(0, 0o7777)), st.integers(0, 4294967294 if large else 0o7777777)
    uid, gid, time = draw(owner), draw(owner), draw(st.integers(-(1 << 40) if large else 0, 0o77777777777))
    device = draw(st.tuples(st.integers(0, 4095), st.integers(0, 0o7777777 >> 1)))
    device = device if kind in (tarfile.CHRTYPE, tarfile.BLKTYPE) else (0, 0)
    facts = {"type": kind, "mode": mode, "uid": uid, "gid": gid, "devmajor": device[0], "devminor": device[1]}
    nanoseconds = 0
    if form == tarfile.PAX_FORMAT:
        nanoseconds = draw(st.integers(0, 10**9 - 1))
        facts["pax_headers"] = {"mtime": f"{Decimal(time) + Decimal(nanoseconds).scaleb(-9):f}"}
    name = b"/".join(parts).decode("utf-8", "surrogateescape")
    written = file(name, data, mtime=time, **facts)
    return written, (tuple(parts), KINDS[kind] | mode, uid, gid, time, nanoseconds, device, data)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@given(data=st.data())
@examples(30)
def test_archives_of_the_standard_library(
    form: int, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    written = data.draw(st.lists(members(form), max_size=5))
    path = tmp_path_factory.getbasetemp() / "archive"
    found = []
    for entry in read(path, layer(*(member for member, _ in written), form=form)):
        inode = entry.inode
        assert inode is not None
        with entry.content.open() if entry.content is not None else io.BytesIO() as content:
            content_read = content.read()
        times = (inode.mtime, inode.mtime_ns)
        found.append((entry.parts, inode.mode, inode.uid, inode.gid, *times, inode.rdev, content_read))
    assert found == [facts for _, facts in written]


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
