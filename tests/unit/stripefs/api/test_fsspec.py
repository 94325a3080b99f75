"""stripefs through fsspec: calls of programs, transactions, and libraries that stand on it."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import pickle
from datetime import UTC, datetime
from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import stripefs
from stripefs.fsspec import HdfsFileSystem, LocalFileSystem, StripefsFileSystem
from tests.support.python_api import MIB, content, names, python
from tests.support.refusals import refused

DATA = content(9 * MIB)


@pytest.fixture
def url(place: Path) -> str:
    return f"stripefs+file://{place}"


@pytest.fixture
def fs(place: Path) -> LocalFileSystem:
    return LocalFileSystem(skip_instance_cache=True)


@pytest.mark.parametrize("scheme", ["", "+file", "+hdfs", "+s3", "+gs", "+http", "+https"])
def test_fsspec_finds_it_by_its_protocols(scheme: str) -> None:
    kind = fsspec.get_filesystem_class(f"stripefs{scheme}")
    assert issubclass(kind, StripefsFileSystem)
    assert kind.protocol == f"stripefs{scheme}"


@pytest.mark.parametrize(
    ("kind", "url", "path", "parent"),
    [
        (HdfsFileSystem, "stripefs+hdfs://nn:8020/a/b/", "nn:8020/a/b", "nn:8020/a"),
        (HdfsFileSystem, "stripefs+hdfs:///a", "/a", ""),
        (LocalFileSystem, "stripefs+file:///a/b", "/a/b", "/a"),
        (LocalFileSystem, "stripefs+file:///", "/", "/"),
        (StripefsFileSystem, "stripefs://a/b", "a/b", "a"),
        (StripefsFileSystem, "stripefs:///a/b/", "a/b", "a"),
        (StripefsFileSystem, "/a", "a", ""),
    ],
)
def test_paths(kind: type[StripefsFileSystem], url: str, path: str, parent: str) -> None:
    assert kind._strip_protocol(url) == path
    assert kind._strip_protocol(path) == path
    assert kind._parent(url) == parent


def test_urls_are_opened(place: Path, url: str) -> None:
    with fsspec.open(f"{url}/folder/file", "wb") as file:
        file.write(DATA)
    with fsspec.open(f"{url}/folder/file") as file:
        assert file.read() == DATA
    with fsspec.open("stripefs://folder/file", root=str(place)) as file:
        assert file.read() == DATA
    with fsspec.open(f"{url}/text.gz", "wt", compression="infer") as file:
        file.write("words\n" * 1000)
    with fsspec.open(f"{url}/text.gz", "rt", compression="infer") as file:
        assert file.readlines() == ["words\n"] * 1000
    with pytest.raises(ValueError, match="root="):
        fsspec.filesystem("stripefs", skip_instance_cache=True)
    with pytest.raises(ValueError, match="goes with stripefs://"):
        fsspec.filesystem("stripefs+hdfs", root="hdfs://host/", skip_instance_cache=True)
    with pytest.raises(TypeError, match="did you mean"):
        fsspec.filesystem("stripefs", root=str(place), memry="1GiB")


def test_what_is_there(place: Path, url: str, fs: LocalFileSystem) -> None:
    (place / "folder").mkdir()
    (place / "folder" / "file").write_bytes(DATA)
    path = f"{place}/folder/file"
    info = fs.info(f"{url}/folder/file")
    assert (info["name"], info["type"], info["size"]) == (path, "file", len(DATA))
    assert fs.ls(f"{url}/folder") == [info]
    assert fs.ls(path, detail=False) == fs.ls(f"{place}/folder/", detail=False) == [path]
    assert fs.find(url) == fs.glob(f"{url}/**/f*e") == [path]
    assert list(fs.walk(url)) == [(str(place), ["folder"], []), (f"{place}/folder", [], ["file"])]
    assert fs.du(url) == len(DATA)
    assert (fs.exists(path), fs.exists(f"{path}x"), fs.isdir(url), fs.isfile(url)) == (True, False, True, False)
    assert datetime.now(UTC) > fs.modified(path) == fs.created(path) > datetime(2020, 1, 1, tzinfo=UTC)
    before = fs.ukey(path)
    (place / "folder" / "file").write_bytes(DATA + b"x")
    assert fs.ukey(path) != before
    assert fs.unstrip_protocol(path) == f"{url}/folder/file"
    with pytest.raises(FileNotFoundError):
        fs.ls(f"{place}/no")
    with pytest.raises(FileNotFoundError):
        fs.info(f"{place}/no")


def test_a_store_that_fails_is_not_an_empty_one(place: Path) -> None:
    fs = StripefsFileSystem(root=f"faulty+file://{place}?kinds=wrong&on=stat&rate=1", skip_instance_cache=True)
    with pytest.raises(RuntimeError, match="injected bug"):
        fs.exists("x")


def test_parts_of_files(place: Path, fs: LocalFileSystem) -> None:
    for name in ("one", "two"):
        (place / name).write_bytes(DATA)
    one, two = str(place / "one"), f"stripefs+file://{place}/two"
    assert fs.cat_file(one) == DATA
    assert (fs.cat_file(one, 5, 15), fs.cat_file(one, -15, -5), fs.cat_file(one, 10**9)) == (
        DATA[5:15],
        DATA[-15:-5],
        b"",
    )
    assert fs.cat_ranges([one, two, one], [0, 10, None], [5, 20, None]) == [DATA[:5], DATA[10:20], DATA]
    assert fs.cat_ranges([one, two], 3, 9) == [DATA[3:9]] * 2
    found = fs.cat_ranges([one, f"{one}x"], [0, 0], [5, 5])
    assert found[0] == DATA[:5]
    assert isinstance(found[1], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges([one, f"{one}x"], [0, 0], [5, 5], on_error="raise")
    with pytest.raises(ValueError, match="as many"):
        fs.cat_ranges([one], [0, 1], [5])
    assert fs.cat([one, two]) == {one: DATA, str(place / "two"): DATA}
    assert (fs.head(one, 10), fs.tail(one, 10)) == (DATA[:10], DATA[-10:])
    assert fs.read_block(one, 10, 10) == DATA[10:20]


def test_changes(place: Path, url: str, fs: LocalFileSystem) -> None:
    fs.pipe(f"{url}/a/b/file", b"1")
    fs.mkdir(f"{url}/a/c")
    with pytest.raises(FileExistsError):
        fs.mkdir(f"{url}/a/c")
    with pytest.raises(FileNotFoundError):
        fs.mkdir(f"{url}/x/y", create_parents=False)
    with pytest.raises(FileNotFoundError):
        StripefsFileSystem(root=str(place), auto_mkdir=False).pipe_file("x/file", b"")
    fs.makedirs(f"{url}/a/c", exist_ok=True)
    for same in ("a/b/file", "a", "a/"):  # it is moved onto itself, and stays
        fs.mv(f"{url}/{same.rstrip('/')}", f"{url}/{same}")
    fs.mv(f"{url}/a/b/file", f"{url}/a/c/")
    fs.mv(f"{url}/a/c/file", f"{url}/d/new")
    fs.pipe(f"{url}/d/other", b"2")
    fs.mv(f"{url}/d/new", f"{url}/d/other")
    assert fs.cat_file(f"{url}/d/other") == b"1"
    fs.mv(f"{url}/d", f"{url}/a")
    assert names(place) == {"a", "a/b", "a/c", "a/d", "a/d/other"}
    fs.cp_file(f"{url}/a/d/other", f"{url}/a/copy")
    fs.rmdir(f"{url}/a/b")
    fs.rm(f"{url}/a/d/o*")
    fs.rm_file(f"{url}/a/d")
    assert names(place) == {"a", "a/c", "a/copy"}
    with refused(errno.ENOTEMPTY):
        fs.rm(f"{url}/a")
    fs.rm([f"{url}/a"], recursive=True)
    assert names(place) == set()
    fs.touch(f"{url}/empty")
    assert fs.size(f"{url}/empty") == 0
    with pytest.raises(FileNotFoundError):
        fs.mv(f"{url}/no", f"{url}/new")


def test_files_of_two_sources_are_copied(place: Path, url: str, fs: LocalFileSystem) -> None:
    for name in ("one", "two"):
        (place / name).mkdir()
        stripefs.connect(str(place / name), layout="striped", unit="1MiB").write_bytes("file", DATA)
    fs.mv(f"{url}/one/file", f"{url}/two/moved")
    assert not fs.exists(f"{url}/one/file")
    assert fs.cat_file(f"{url}/two/moved") == DATA


@pytest.mark.parametrize("mode", ["w", "wt", "wb"])
@pytest.mark.parametrize("compression", [None, "gzip", "bz2", "xz", "zip", "infer"])
def test_text_and_what_is_compressed_is_published_whole_or_not_at_all(
    place: Path, fs: LocalFileSystem, mode: str, compression: str | None
) -> None:
    path = f"{place}/words.gz"
    words: str | bytes = b"all of it\n" * 1000 if mode == "wb" else "all of it\n" * 1000
    with fs.open(path, mode, compression=compression) as file:
        file.write(words)
    assert file.closed
    stored = (place / "words.gz").read_bytes()
    file = fs.open(path, mode, compression=compression)
    with contextlib.suppress(RuntimeError), file:
        file.write(words[:100])
        raise RuntimeError
    assert file.closed
    assert (place / "words.gz").read_bytes() == stored
    assert names(place) == {"words.gz"}
    with fs.open(path, mode.replace("w", "r"), compression=compression) as file:
        assert file.read() == words


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_text_that_is_dropped_is_not_published(
    place: Path, fs: LocalFileSystem, compression: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    file = fs.open(f"{place}/words", "w", compression=compression)
    file.write("half of")
    del file
    gc.collect()
    assert "never closed" in caplog.text
    assert not (place / "words").exists()


def test_text_that_cannot_be_encoded_replaces_nothing(place: Path, fs: LocalFileSystem) -> None:
    (place / "words").write_text("good")
    with pytest.raises(UnicodeEncodeError):
        fs.write_text(f"{place}/words", "b\xf6se", encoding="ascii")
    with pytest.raises(LookupError):
        fs.open(f"{place}/words", "w", encoding="nonsense")
    assert (place / "words").read_text() == "good"
    assert names(place) == {"words"}


def test_a_transaction_publishes_all_or_nothing(place: Path, url: str, fs: LocalFileSystem) -> None:
    def write(*, fail: bool) -> None:
        with fs.transaction:
            for number in range(3):
                with fs.open(f"{url}/file{number}", "wb") as file:
                    file.write(DATA[number:])
            assert fs.ls(url) == []
            if fail:
                raise KeyError

    with pytest.raises(KeyError):
        write(fail=True)
    assert names(place) == set()
    write(fail=False)
    assert fs.ls(url, detail=False) == [f"{place}/file{number}" for number in range(3)]
    assert fs.cat_file(f"{url}/file2") == DATA[2:]
    fs.start_transaction()
    with fs.open(f"{url}/late.gz", "w", compression="gzip") as text:
        text.write("words")
    assert not fs.exists(f"{url}/late.gz")
    fs.end_transaction()
    with fs.open(f"{url}/late.gz", "r", compression="gzip") as text:
        assert text.read() == "words"


def test_a_transaction_does_not_move_what_has_to_be_copied(place: Path, url: str, fs: LocalFileSystem) -> None:
    fs.pipe_file(f"{url}/file", b"x")
    with refused(errno.EXDEV), fs.transaction:
        fs.mv([f"{url}/file"], [f"{url}/moved"])
    assert names(place) == {"file"}


def test_file_systems_travel(place: Path) -> None:
    fs = StripefsFileSystem(root=str(place), layout="plain")
    fs.pipe_file("file", b"x")
    there = pickle.loads(pickle.dumps(fs))
    assert there == fs
    assert there.cat_file("file") == b"x"
    assert fsspec.AbstractFileSystem.from_json(fs.to_json()).cat_file("file") == b"x"
    assert json.loads(fs.to_json())["root"] == str(place)
    program = "import pickle, sys; print(pickle.loads(bytes.fromhex(sys.argv[1])).cat_file('file'))"
    assert python(program, pickle.dumps(fs).hex()).stdout == "b'x'\n"


def test_pandas_and_pyarrow_stand_on_it(place: Path, url: str, fs: LocalFileSystem) -> None:
    frame = pd.DataFrame({"key": [number % 4 for number in range(40_000)], "half": np.arange(40_000) / 2})
    frame.to_parquet(f"{url}/table.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(f"{url}/table.parquet"), frame)
    options = {"root": str(place), "layout": "plain"}
    frame.to_csv("stripefs://folder/table.csv", index=False, storage_options=options)
    pd.testing.assert_frame_equal(pd.read_csv(f"{url}/folder/table.csv"), frame)
    table, path = pa.Table.from_pandas(frame), str(place / "data")
    ds.write_dataset(table, path, format="parquet", partitioning=["key"], filesystem=fs, existing_data_behavior="error")
    dataset = ds.dataset(path, format="parquet", partitioning=["key"], filesystem=fs)
    assert dataset.count_rows() == 40_000
    assert sorted(dataset.to_table(filter=ds.field("key") == 2)["half"].to_pylist()) == list(range(1, 20_000, 2))
