"""Trees of every kind of inode, for Hypothesis."""

from __future__ import annotations

import stat
from typing import Any

from hypothesis import strategies as st

from imagefs.format.erofs import BLOCK, CHUNK
from imagefs.format.inodes import HOLE, Inode, address

names = st.binary(min_size=1, max_size=255).filter(
    lambda name: name not in (b".", b"..") and not set(name) & {0, ord("/")}
)
_attribute_names = st.one_of(
    st.just(b"system.posix_acl_access"),
    st.builds(
        lambda prefix, name: prefix + name,
        st.sampled_from([b"user.", b"trusted.", b"security."]),
        st.binary(min_size=1, max_size=40).filter(lambda name: 0 not in name),
    ),
)
_facts = {
    "uid": st.integers(0, 2**32 - 2),
    "gid": st.integers(0, 2**32 - 2),
    "mtime": st.integers(-(2**40), 2**40),
    "mtime_ns": st.integers(0, 10**9 - 1),
    "xattrs": st.dictionaries(_attribute_names, st.binary(max_size=300), max_size=3).map(
        lambda found: tuple(sorted(found.items()))
    ),
}
_permissions = st.integers(0, 0o7777)


@st.composite
def _files(draw: Any) -> Inode:
    mode = stat.S_IFREG | draw(_permissions)
    facts = {name: draw(strategy) for name, strategy in _facts.items()}
    if draw(st.booleans()):
        data = draw(st.binary(max_size=5000))
        return Inode(mode, size=len(data), data=data, **facts)
    size = draw(st.integers(1, 10 * CHUNK))
    unit = CHUNK
    while unit > BLOCK and size <= unit // 2:
        unit //= 2
    places = st.one_of(st.just(HOLE), st.builds(address, st.integers(1, 2), st.integers(0, 2**32 - 2)))
    count = -(-size // unit)
    return Inode(mode, size=size, chunks=draw(st.lists(places, min_size=count, max_size=count)), **facts)


@st.composite
def _others(draw: Any) -> Inode:
    kind = draw(st.sampled_from([stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK]))
    facts = {name: draw(strategy) for name, strategy in _facts.items()}
    if kind == stat.S_IFLNK:
        return Inode(kind | 0o777, data=draw(st.binary(min_size=1, max_size=4095)), **facts)
    rdev = (
        (draw(st.integers(0, 4095)), draw(st.integers(0, 2**20 - 1)))
        if kind in (stat.S_IFCHR, stat.S_IFBLK)
        else (0, 0)
    )
    return Inode(kind | draw(_permissions), rdev=rdev, **facts)


@st.composite
def _directories(draw: Any, inside: Any) -> Inode:
    facts = {name: draw(strategy) for name, strategy in _facts.items()}
    return Inode(stat.S_IFDIR | draw(_permissions), children=draw(st.dictionaries(names, inside, max_size=6)), **facts)


@st.composite
def trees(draw: Any) -> Inode:
    """A directory with anything below it, hardlinks too."""
    leaves = st.one_of(_files(), _others())
    root: Inode = draw(_directories(st.recursive(leaves, lambda inside: _directories(inside), max_leaves=20)))
    files = [child for child in (root.children or {}).values() if child.children is None]
    assert root.children is not None
    for name in draw(st.lists(names, max_size=3)):
        if files and name not in root.children:
            root.children[name] = draw(st.sampled_from(files))
    return root
