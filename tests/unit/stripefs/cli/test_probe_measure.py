"""The measurements of `stripefs probe`, on a local directory behind throttled hosts: what is read, never how fast."""

import functools
import json
import os
import socket
from contextlib import closing
from pathlib import Path

import pytest
import trio

from stripefs import logs
from stripefs.cli import probe_measure
from stripefs.cli.main import PROGRAM
from stripefs.cli.probe import describe
from stripefs.cli.probe_measure import Report, big_file, probe, unreachable
from stripefs.errors import ConfigError, HostFailed, NotFound
from stripefs.settings import MIB, ReadSettings, Settings, StoreSettings
from stripefs.store.base import Host
from stripefs.store.url import open_store, parent_and_name

SIZE = 6 * MIB + 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/small").write_bytes(b"x" * 10)
    (tmp_path / "data/big 1").write_bytes(os.urandom(SIZE))
    (tmp_path / "data/empty").mkdir()
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("url", "parent", "path"),
    [
        ("hdfs://nn:8020/a/b", "hdfs://nn:8020/a/", b"/b"),
        ("hdfs://nn:8020/a/", "hdfs://nn:8020/", b"/a"),
        ("hdfs://nn:8020", "hdfs://nn:8020", b"/"),
        ("file:///a%20b", "file:///", b"/a b"),
        ("throttled+file:///d/f?rate=4MB/s", "throttled+file:///d/?rate=4MB/s", b"/f"),
        ("/a/b%20?c", "/a/", b"/b%20?c"),
        ("/", "/", b"/"),
    ],
)
def test_a_url_that_names_a_file(url: str, parent: str, path: bytes) -> None:
    assert parent_and_name(url) == (parent, path)


def test_the_biggest_file_of_a_directory(folder: Path) -> None:
    store = open_store(StoreSettings(url=str(folder)))
    assert big_file(store, b"/")[0] == b"/big 1"
    assert big_file(store, b"/small") == (b"/small", store.stat(b"/small"))
    with pytest.raises(NotFound, match="holds no file"):
        big_file(store, b"/empty")
    with pytest.raises(NotFound):
        big_file(store, b"/none")
    store.close()


async def test_addresses_that_cannot_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound but not listening: refused
        here, gone = (f"127.0.0.1:{sock.getsockname()[1]}" for sock in (server, closed))
        hosts = [Host("a", here), Host(gone), Host("c", "127.0.0.1:1", live=False), Host("no-address")]
        found = await unreachable(hosts)
        assert {name: address for name, (address, _) in found.items()} == {gone: gone}


async def test_a_silent_address_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    async def never(host: str, port: int) -> None:
        await trio.sleep_forever()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe_measure.trio, "open_tcp_stream", never)
        assert await unreachable([Host("a", "192.0.2.1:80")]) == {"a": ("192.0.2.1:80", "no answer in 2 s")}


def report(folder: Path, query: str, size: int = 3 * MIB, wrapper: str = "throttled") -> tuple[Report, list[int]]:
    told: list[int] = []
    settings = Settings(StoreSettings(url=f"{wrapper}+file://{folder}?{query}"), ReadSettings(range_size=MIB))
    with closing(open_store(settings.store)) as store:
        return trio.run(functools.partial(probe, store, b"/", settings, size, told.append)), told


def test_no_more_than_half_of_the_file_each_way(folder: Path) -> None:
    found, told = report(folder, "rate=1GB/s", size=1 << 30)
    assert found.one.size == SIZE // 2
    assert SIZE // 2 <= found.parallel.size <= SIZE // 2 + MIB  # whole chunks
    assert sum(told) == SIZE // 2 * 2


def test_the_json_form_holds_what_the_text_shows(folder: Path) -> None:
    found, told = report(folder, "hosts=4&placement=one&block-size=1MiB&rate=1GB/s")
    assert (found.path, found.one.size, sum(told)) == ("/big 1", 3 * MIB, 6 * MIB)
    assert found.one.size == sum(found.one.hosts.values())
    assert found.one.size <= found.parallel.size == sum(found.parallel.hosts.values())  # and what was looked ahead
    found.unreachable = [("10.0.0.1:9866", "refused")]
    answer = json.loads(json.dumps(found.as_dict()))
    text = describe(found)
    assert answer["limit"] == found.verdict.limit
    assert f"limit         {found.verdict.limit}: {answer['reason']}" in text
    assert "out of reach  10.0.0.1:9866: refused" in text
    assert "data hosts    4 live" in text
    assert len(answer["parallel"]["hosts"]) == 1


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """h0 cannot be reached from here."""

    async def unreachable(hosts: list[Host]) -> dict[str, tuple[str, str]]:
        return {"h0": ("10.0.0.1:9864", "no answer in 2 s")}

    monkeypatch.setattr(probe_measure, "unreachable", unreachable)


def test_one_stream_keeps_off_hosts_that_cannot_be_reached(folder: Path, far: None) -> None:
    found, _ = report(folder, "hosts=2&replication=2&block-size=1MiB&rate=1GB/s")
    assert set(found.one.hosts) == {"h1"}
    assert found.unreachable == [("10.0.0.1:9864", "no answer in 2 s")]
    assert any("--use-datanode-hostname" in note for note in found.notes)


def test_when_reading_fails_the_hosts_out_of_reach_are_named(folder: Path, far: None) -> None:
    query = "hosts=2&throttled.rate=1GB/s&faulty.rate=1&kinds=host"
    with pytest.raises(HostFailed, match=r"; out of reach from here: 10\.0\.0\.1:9864 \(no answer") as caught:
        report(folder, query, wrapper="faulty+throttled")
    assert "--use-datanode-hostname" in caught.value.hint


def test_a_file_too_small_to_measure(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1")
    with pytest.raises(ConfigError, match="too small"):
        report(tmp_path, "hosts=2")


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[str] = []
    monkeypatch.setattr(logs, "configure", lambda form, level: levels.append(level))
    assert PROGRAM.main(["probe", f"{folder}/big 1", "--size", "1MiB", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""  # no progress bar where nobody looks
    assert json.loads(out)["path"] == "/big 1"
    assert PROGRAM.main(["probe", f"{folder}/none", "--log-level", "info"]) == 3
    assert levels == ["error", "info"]
    assert capsys.readouterr().err.startswith("stripefs: ")
