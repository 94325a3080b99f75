"""The cold device: no file crosses what it should not, and a change moves little."""

from __future__ import annotations

import io
import random
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefs.build.content import UNIT, Content, lay_out
from imagefs.errors import FormatError
from imagefs.format.erofs import BLOCK, CHUNK
from imagefs.format.index import BLOCK as DATA_BLOCK
from imagefs.format.inodes import HOLE, Inode, address


class Bytes:
    """A file in memory, with holes where it is told."""

    def __init__(self, data: bytes, ranges: list[tuple[int, int]] | None = None) -> None:
        self.size = len(data)
        self._data = data
        self._ranges = [(0, len(data))] if ranges is None else ranges

    def ranges(self) -> list[tuple[int, int]]:
        return self._ranges

    def open(self) -> io.BytesIO:
        return io.BytesIO(self._data)


def tree(sizes: dict[str, dict[str, int]]) -> tuple[Inode, dict[Inode, Content], dict[str, Inode]]:
    """Directories of files of these sizes."""
    contents: dict[Inode, Content] = {}
    named: dict[str, Inode] = {}
    folders: dict[bytes, Inode] = {}
    for folder, files in sizes.items():
        inside: dict[bytes, Inode] = {}
        for name, size in files.items():
            file = Inode(stat.S_IFREG | 0o644, size=size)
            inside[name.encode()] = named[f"{folder}/{name}"] = file
            contents[file] = Bytes(bytes(size))  # type: ignore[assignment]  # a list is as good as an iterator
        folders[folder.encode()] = Inode(stat.S_IFDIR | 0o755, children=inside)
    return Inode(stat.S_IFDIR | 0o755, children=folders), contents, named


_sizes = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3),
    st.dictionaries(st.text("ghijkl", min_size=1, max_size=4), st.integers(1, 3 * DATA_BLOCK), max_size=12),
    max_size=5,
)


@given(_sizes)
def test_segments_are_apart_and_files_stay_inside_blocks(sizes: dict[str, dict[str, int]]) -> None:
    root, contents, named = tree(sizes)
    segments = lay_out(root, contents)
    end = 0
    for segment in segments:
        assert segment.at >= end
        assert segment.at % BLOCK == 0
        if segment.length >= UNIT:
            assert segment.at % DATA_BLOCK == 0
        else:
            assert segment.at // DATA_BLOCK == (segment.at + segment.length - 1) // DATA_BLOCK
        end = segment.at + segment.length
    assert sum(segment.length for segment in segments) == sum(file.size for file in named.values())


def test_a_small_file_more_moves_only_its_neighbours_within_their_blocks() -> None:
    chance = random.Random(3)
    sizes = {f"d{n:02}": {f"f{m:03}": chance.randrange(3000, 30000) for m in range(60)} for n in range(20)}
    root, contents, named = tree(sizes)
    lay_out(root, contents)
    before = _shared_blocks(named)
    sizes["d10"]["f030x"] = 5000
    root, contents, named = tree(sizes)
    lay_out(root, contents)
    after = _shared_blocks(named)
    assert len(before - after) <= 4  # of about 160


def _shared_blocks(named: dict[str, Inode]) -> set[frozenset[tuple[str, int]]]:
    """Files that share each block, with their offsets in it."""
    blocks: dict[int, set[tuple[str, int]]] = {}
    for name, inode in named.items():
        at = (inode.chunks[0] & 0xFFFFFFFF) * BLOCK
        blocks.setdefault(at // DATA_BLOCK, set()).add((name, at % DATA_BLOCK))
    return {frozenset(inside) for inside in blocks.values()}


def test_holes_take_no_room() -> None:
    root, contents, named = tree({"d": {"sparse": 100 * UNIT}})
    file = named["d/sparse"]
    contents[file] = Bytes(bytes(100 * UNIT), [(0, 100), (50 * UNIT + 5, UNIT)])  # type: ignore[assignment]
    segments = lay_out(root, contents)
    assert [(segment.offset, segment.length, segment.at) for segment in segments] == [
        (0, UNIT, 0),
        (50 * UNIT, 2 * UNIT, DATA_BLOCK),
    ]
    a_unit, a_chunk = UNIT // CHUNK, CHUNK // BLOCK
    first, second = range(a_unit), range(2 * a_unit)
    assert list(file.chunks[: a_unit + 1]) == [*(address(1, at * a_chunk) for at in first), HOLE]
    assert list(file.chunks[50 * a_unit : 52 * a_unit + 1]) == [
        *(address(1, DATA_BLOCK // BLOCK + at * a_chunk) for at in second),
        HOLE,
    ]


def test_a_hardlinked_file_has_one_place() -> None:
    root, contents, named = tree({"d": {"a": 10000}, "e": {}})
    assert root.children is not None
    other = root.children[b"e"].children
    assert other is not None
    other[b"again"] = named["d/a"]
    assert len(lay_out(root, contents)) == 1


def test_what_lies_past_16_tib_is_refused() -> None:
    """The blocks of a longer device or file would get the numbers of others."""
    address(1, 2**32 - 2)
    with pytest.raises(FormatError, match="16 TiB"):
        address(1, 2**32 - 1)
    root, contents, named = tree({"d": {"huge": 1}})
    named["d/huge"].size = (16 << 40) + 1
    with pytest.raises(FormatError, match="huge: a file of 17592186044417 bytes"):
        lay_out(root, contents)
