"""Sources of URLs, the number of connections, the forms of options, and links of this host."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

import stripefs
from stripefs.api.sources import in_service, real_path, url_in_service
from tests.support.python_api import MIB, content
from tests.support.refusals import refused

DATA = content(10 * MIB)


def test_a_moved_tree_has_its_parts_with_it(place: Path) -> None:
    (place / "old" / "step").mkdir(parents=True)
    stripefs.connect(str(place / "old"), layout="striped", unit="1MiB").write_bytes("step/model", DATA)
    assert stripefs.open(str(place / "old/step/model")).read() == DATA
    stripefs.connect(str(place)).rename("old", "new")
    assert stripefs.open(str(place / "new/step/model")).read() == DATA
    shutil.move(place / "new", place / "newest")
    assert stripefs.open(str(place / "newest/step/model")).read() == DATA


def test_writing_by_url_goes_to_the_nearest_pool(place: Path) -> None:
    (place / "a" / "b").mkdir(parents=True)
    with refused(errno.EINVAL):
        stripefs.open(str(place / "a/b/model"), "wb", layout="striped")
    assert os.listdir(place / "a" / "b") == []
    with stripefs.open(str(place / "a/b/model"), "wb", layout="striped", root=str(place)) as file:
        file.write(DATA)
    assert (place / ".stripefs").is_dir()
    with stripefs.open(str(place / "a/b/other"), "wb", layout="striped") as file:
        file.write(DATA[::-1])
    assert stripefs.connect(str(place)).read_bytes("a/b/other") == DATA[::-1]
    with stripefs.open(str(place / "a/b/model"), "ab") as file:
        file.write(DATA)
    assert stripefs.open(str(place / "a/b/model")).read() == DATA * 2


def test_links_of_local_directories_are_followed(place: Path) -> None:
    (place / "real").mkdir()
    (place / "link").symlink_to("real")
    with stripefs.open(str(place / "link" / "file"), "wb") as file:
        file.write(b"x")
    (place / "name").symlink_to("real/file")
    assert stripefs.open(str(place / "name")).read() == b"x"
    assert stripefs.connect(str(place / "link")).listdir() == ["file"]


@pytest.mark.parametrize(
    ("url", "service", "path"),
    [
        ("/data/x", "/", b"/data/x"),
        ("file:///data/x%20y", "/", b"/data/x y"),
        ("hdfs://nn:8020/a/b/", "hdfs://nn:8020/", b"/a/b"),
        ("hdfs:///a", "hdfs:///", b"/a"),
        ("s3://bucket/a/b?region=x", "s3://bucket/?region=x", b"/a/b"),
        ("https://host//a/./b", "https://host/", b"/a/b"),
        ("throttled+file:///data/x?hosts=3", "throttled+file:///data?hosts=3", b"/x"),
    ],
)
def test_urls_in_parts(url: str, service: str, path: bytes) -> None:
    assert in_service(url, of_file=True) == (service, path)
    assert in_service(url_in_service(service, path), of_file=True) == (service, path)


def test_options_are_those_of_the_command(place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def settings(**options: object):
        return stripefs.connect(str(place), **options)._address.settings

    given = settings(
        memory="64MiB", threads=8, hedge=False, layout_for={"*.a": "plain", "*.b": "striped"}, unit=2 * MIB
    )
    assert (given.read.memory, given.read.threads, given.read.hedge) == (64 * MIB, 8, False)
    assert (given.write.layout_for, given.write.unit) == ((("*.a", "plain"), ("*.b", "striped")), 2 * MIB)
    assert settings(trust_pool=["/a/.stripefs", "/b/.stripefs"]).write.trust_pool == ("/a/.stripefs", "/b/.stripefs")
    monkeypatch.setenv("STRIPEFS_THREADS", "9")
    assert (settings().read.threads, settings(threads=10).read.threads) == (9, 10)
    (tmp_path / "other.toml").write_text("version = 1\n[read]\nper_host = 5\n")
    assert settings(config=str(tmp_path / "other.toml")).read.per_host == 5
    with pytest.raises(TypeError, match="did you mean memory"):
        settings(memry="1GiB")
    with pytest.raises(TypeError, match="no option"):
        settings(rw=True)
    with pytest.raises(OSError, match="memory: "):
        settings(memory="much")


def test_a_file_must_lie_in_the_root_that_is_given(place: Path) -> None:
    (place / "file").touch()
    assert stripefs.open(str(place / "file"), root=f"file://{place.parent}").read() == b""
    for root in (place / "file", place / "other", "hdfs://host/"):
        with pytest.raises(OSError, match=r"does not lie|not of the service"):
            stripefs.open(str(place / "file"), root=str(root))


def test_only_what_is_asked_for_is_loaded() -> None:
    assert {"open", "connect", "FileSystem"} <= set(dir(stripefs))
    with pytest.raises(AttributeError, match="no attribute"):
        _ = stripefs.nothing  # type: ignore[attr-defined]


# -- links: resolved in one question however deep a path is


@pytest.mark.parametrize(
    "name", ["", "a", "a/b/..", "link", "link/b", "lost", "lost/below", "none/below", "loop", "a/./"]
)
def test_it_is_as_python_has_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "lost").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    path = os.fsencode(f"{tmp_path}/{name}")
    assert real_path(path) == os.path.realpath(path)


def test_it_costs_one_question_however_deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path.joinpath(*["d"] * 500)
    deep.mkdir(parents=True)
    monkeypatch.setattr(os, "lstat", lambda *_args, **_kwargs: pytest.fail("it asks name by name"))
    assert real_path(os.fsencode(deep)) == os.fsencode(deep)


def test_what_is_removed_meanwhile_has_no_wrong_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    ask = os.readlink

    def removed_before(path: bytes) -> bytes:
        (tmp_path / "a").rmdir()
        return ask(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "readlink", removed_before)
        assert real_path(os.fsencode(tmp_path / "a")) == os.fsencode(tmp_path / "a")
