"""Destinations of copied entries: as cp(1) has them, and refusals."""

from __future__ import annotations

import pytest

from stripefs.copy.plan import CopySource, assign
from stripefs.errors import ConfigError


def thing(path: str, kind: str = "file", service: str = "hdfs://a/") -> CopySource:
    return CopySource(
        path, path.rstrip("/").rpartition("/")[2].encode(), kind, (service, path.rstrip("/").encode() or b"/")
    )


def folder(path: str, service: str = "hdfs://a/") -> CopySource:
    return thing(path, "directory", service)


def there(path: str, kind: str = "directory") -> CopySource:
    return thing(path, kind, "hdfs://b/")


def nothing(path: str) -> CopySource:
    return there(path, "")


@pytest.mark.parametrize(
    ("source", "target", "slash", "exact", "name"),
    [
        (thing("/x/a"), nothing("/b"), False, False, b""),
        (thing("/x/a"), there("/b", "file"), False, False, b""),
        (thing("/x/a"), there("/b"), False, False, b"a"),
        (thing("/x/a"), nothing("/b"), True, False, b"a"),
        (folder("/x/d"), nothing("/b"), False, False, b""),
        (folder("/x/d"), nothing("/b"), True, False, b""),
        (folder("/x/d"), there("/b"), False, False, b"d"),
        (folder("/x/d"), there("/b"), False, True, b""),
        (CopySource("/x/.", b"", "directory", ("hdfs://a/", b"/x")), there("/b"), False, False, b""),
    ],
)
def test_one_thing(source: CopySource, target: CopySource, slash: bool, exact: bool, name: bytes) -> None:
    assert assign([source], target, recursive=True, slash=slash, exact=exact) == [name]


def test_several_things() -> None:
    sources = [thing("/x/a"), folder("/x/d"), thing("/y/b")]
    assert assign(sources, there("/t"), recursive=True, several=True) == [b"a", b"d", b"b"]
    assert assign(sources, nothing("/t"), recursive=True, several=True, slash=True) == [b"a", b"d", b"b"]
    # One of two that were named is there: the other does not change what the command means.
    assert assign(sources[1:2], nothing("/t"), recursive=True, several=True, slash=True) == [b"d"]
    assert assign([], there("/t"), recursive=True, several=True) == []


@pytest.mark.parametrize(
    ("target", "slash", "exact", "several", "said"),
    [
        (nothing("/t"), False, False, True, "no directory to put several things into"),
        (there("/t", "file"), False, False, True, "no directory to put"),
        (there("/t"), False, True, True, "no directory to put"),
        (there("/t", "file"), True, False, False, "a file, not a directory"),
        (there("/dev/null", "other"), False, False, False, "no regular file"),
    ],
)
def test_what_cannot_be_meant(target: CopySource, slash: bool, exact: bool, several: bool, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        assign([thing("/x/a")], target, recursive=True, slash=slash, exact=exact, several=several)


@pytest.mark.parametrize(
    ("source", "target", "recursive", "said"),
    [
        (folder("/x"), folder("/t"), False, "is a directory"),
        (thing("/x", "other"), folder("/t"), False, "no regular file"),
        (thing("/t/x"), folder("/t"), False, "onto itself"),
        (thing("/x"), thing("/x"), False, "onto itself"),
        (folder("/x"), CopySource("/x/y", b"y", "", ("hdfs://a/", b"/x/y")), True, "into itself"),
        (folder("/x"), folder("/x"), True, "into itself"),
        (folder("/x"), thing("/t"), True, "is a directory, /t is not"),
        (folder("/"), CopySource("/y", b"y", "", ("hdfs://a/", b"/y")), True, "into itself"),
    ],
)
def test_what_is_refused(source: CopySource, target: CopySource, recursive: bool, said: str) -> None:
    (refused,) = assign([source], target, recursive=recursive)
    assert isinstance(refused, ConfigError)
    assert said in refused.message


def test_a_neighbour_with_a_longer_name_is_not_inside() -> None:
    assert assign([folder("/x")], CopySource("/xy", b"xy", "", ("hdfs://a/", b"/xy")), recursive=True) == [b""]


def test_no_copy_takes_the_place_of_another() -> None:
    sources = [thing("/x/a"), thing("/y/a"), folder("/x/d"), folder("/y/d"), thing("/z/d")]
    found = assign(sources, there("/t"), recursive=True, several=True)
    assert found[0::2] == [b"a", b"d", found[4]]
    assert found[3] == b"d"  # directories are merged
    for refused in (found[1], found[4]):
        assert isinstance(refused, ConfigError)
        assert "the place of the copy of" in refused.message
