"""`NativeClient`'s results for hdfs-native's answers, without a cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from stripefs.errors import HostFailed, NotFound, ServiceDown, StaleVersion, StoreError
from stripefs.store.base import Buffer
from stripefs.store.hdfs import native
from stripefs.store.hdfs.hadoop_conf import NameNode, Target
from stripefs.store.hdfs.native import NativeClient

TARGET = Target("nn:8020", (NameNode("nn:8020", "nn:9870"),), b"", "me", "")


class Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def read_range(self, offset: int, length: int) -> bytes:
        if self.data == b"lost":
            raise RuntimeError("All DataNodes failed")
        return self.data[offset : offset + length]


class Library:
    """As hdfs-native's Client: a file for each path, or what opening it does. `asked` are the opens."""

    def __init__(self) -> None:
        self.files: dict[str, bytes | Callable[[], Reader]] = {}
        self.asked: list[tuple[str, threading.Thread]] = []

    def read(self, path: str) -> Reader:
        self.asked.append((path, threading.current_thread()))
        if path not in self.files:
            raise FileNotFoundError(f"No such file: {path}")
        found = self.files[path]
        return Reader(found) if isinstance(found, bytes) else found()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    monkeypatch.setenv("HADOOP_USER_NAME", "me")
    monkeypatch.setattr(native, "Client", lambda *_: library)
    monkeypatch.setattr(native, "check_rpc", lambda address, timeout: None)
    return library


def client(timeout: float = 60.0) -> NativeClient:
    return NativeClient(TARGET, timeout=timeout, by_hostname=False)


def kinds(answers: Sequence[Buffer | StoreError]) -> list[object]:
    return [type(answer) if isinstance(answer, StoreError) else bytes(answer) for answer in answers]


def test_each_has_its_answer_or_its_error(library: Library) -> None:
    library.files = {"/a": b"a", "/empty": b"", "/long": bytes(11), "/lost": b"lost", "/z": b"z"}
    answers = client().read_small_files(["/a", "/none", "/empty", "/long", "/lost", "/z"], 10)
    assert kinds(answers) == [b"a", NotFound, b"", StaleVersion, HostFailed, b"z"]
    assert [path for path, _ in library.asked] == ["/a", "/none", "/empty", "/long", "/lost", "/z"]
    assert len({thread for _, thread in library.asked}) == 1
    assert threading.current_thread() not in {thread for _, thread in library.asked}


def test_behind_one_that_hangs_the_others_are_answered(library: Library) -> None:
    end = threading.Event()

    def hang() -> Reader:
        end.wait()
        return Reader(b"late")

    library.files = {"/a": b"a", "/hangs": hang, "/b": b"b", "/c": b"c"}
    answers = client(timeout=0.1).read_small_files(["/a", "/hangs", "/b", "/c"], 10)
    end.set()
    assert kinds(answers) == [b"a", ServiceDown, b"b", b"c"]
    assert [path for path, _ in library.asked] == ["/a", "/hangs", "/b", "/c"]


def test_a_namenode_that_goes_away_is_not_asked_for_the_rest(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> Reader:
        def refused(address: str, timeout: float) -> None:
            raise ServiceDown(f"nothing listens at {address}")

        monkeypatch.setattr(native, "check_rpc", refused)
        raise ConnectionRefusedError("connection refused")

    library.files = {"/a": b"a", "/b": gone, "/c": b"c", "/d": b"d"}
    answers = client().read_small_files(["/a", "/b", "/c", "/d"], 10)
    assert kinds(answers) == [b"a", ServiceDown, ServiceDown, ServiceDown]
    assert [path for path, _ in library.asked] == ["/a", "/b"]
    assert "nothing listens at nn:8020" in str(answers[3])
