"""Mirrors by HTTP before a real store: nginx as the documentation has it, servers that misbehave, and a real daemon."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from imagefs.blocks.source import PackSource
from imagefs.blocks.store import BlockDevice
from imagefs.blocks.upstream import Mirrors
from imagefs.format.index import BLOCK, Index
from stripefs.settings import StoreSettings
from tests.support.images.devices import running
from tests.tools.imagefs_daemon import Service, built
from tests.tools.nginx import Nginx, nginx
from tests.tools.web_server import Fault, WebServer

pytestmark = [pytest.mark.root, pytest.mark.slow]

SETTINGS = {"background_rate": "0"}

SIZE = 6_000_000
SLICE = 1 << 20
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class Place:
    """An image in the folder `images` below a web server, tagged t. It is the file `data`, which holds `content`."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "web"
        self.store = self.root / "images"
        self.root.mkdir()
        tree = folder / "tree"
        tree.mkdir()
        self.content = random.Random(str(folder)).randbytes(SIZE)
        (tree / "data").write_bytes(self.content)
        self.report = built(tree, self.store, "t")
        sizes = [path.stat().st_size for path in self.store.glob("packs/*/*")]
        self.packs, self.edges = sum(sizes), len(sizes) * SLICE


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no slow mirror, and no proxy of whoever runs the tests stands in between."""
    monkeypatch.setattr("imagefs.blocks.fetcher.SWITCH_AFTER", 60.0)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("place"))


@pytest.fixture
def server(place: Place) -> Iterator[WebServer]:
    with WebServer(place.root) as server:
        yield server


@pytest.fixture
def cache(server: WebServer, tmp_path: Path) -> Iterator[Nginx]:
    with nginx(tmp_path / "nginx", server.url) as cache:
        yield cache


def asked_of(server: WebServer) -> int:
    """Bytes of packs that were asked for."""
    ranges = [_RANGE.fullmatch(one.headers.get("Range", "")) for one in server.seen if "/packs/" in one.path]
    return sum(int(one[2]) + 1 - int(one[1]) for one in ranges if one)


@contextlib.contextmanager
def source_of(url: str, *mirrors: str, timeout: float = 60.0) -> Iterator[PackSource]:
    settings = StoreSettings(url=url, mirrors=mirrors, host_timeout=timeout)
    with contextlib.closing(PackSource(settings, mirrors=Mirrors(settings))) as source:
        yield source


def index_of(source: PackSource, place: Place) -> tuple[str, Index]:
    """By way of the mirrors; the tag says the store."""
    images = source.images()
    digest = images.resolve("t")
    entry = images.manifest(digest).devices[0]
    return entry.index, images.index(entry.index)


async def whole(device: BlockDevice) -> bytes:
    """All of the device, by reads like the kernel's."""
    return b"".join([bytes(await device.read(at, 8 * BLOCK)) for at in range(0, device.size, 8 * BLOCK)])


async def test_hosts_that_start_together_fetch_each_byte_once(
    place: Place, server: WebServer, cache: Nginx, tmp_path: Path
) -> None:
    """Six daemons, one cache: the packs leave the store once, up to the slices' edges."""
    found: list[bytes] = []
    figures = []

    async def host(number: int) -> None:
        with source_of(f"{server.url}/images", cache.url) as source:
            digest, index = await trio.to_thread.run_sync(index_of, source, place)
            async with running(tmp_path / f"host{number}") as blocks:
                device = await blocks.open(digest, index, source)
                found.append(await whole(device))
                figures.append(blocks.snapshot())

    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(host, number)
    assert all(place.content in one for one in found)
    assert [one["upstreams"]["store"] for one in figures] == [0] * 6
    assert [one["upstreams"][cache.url] for one in figures] == [place.packs] * 6
    assert place.packs <= asked_of(server) <= place.packs + place.edges
    slices = [(one.path, one.headers["Range"]) for one in server.seen if "Range" in one.headers]
    assert len(slices) == len(set(slices))  # also those of documents
    tags = [one for one in server.seen if "/tags/" in one.path]
    assert tags
    assert not any("Range" in one.headers for one in tags)  # from the store itself


@pytest.mark.parametrize("fault", ["short", "silent", "reset", "whole", "404"])
async def test_a_mirror_that_misbehaves_is_left(place: Place, tmp_path: Path, fault: Fault) -> None:
    """From the first pack on."""
    with WebServer(place.root) as mirror, source_of(str(place.store), f"{mirror.url}/images", timeout=0.3) as source:
        digest, index = index_of(source, place)
        right = mirror.count("GET")
        mirror.fail(fault, 100)
        async with running(tmp_path / "blocks") as blocks:
            device = await blocks.open(digest, index, source)
            assert place.content in await whole(device)
            snapshot = blocks.snapshot()
        assert (snapshot["failures"], snapshot["upstreams"]["store"]) == (0, place.packs)
        assert snapshot["mirrors"][0]["reason"]
        assert mirror.count("GET") - right <= 2  # of a connection that broke, once more


async def test_a_proxy_is_asked_for_the_urls_of_the_store(place: Place, server: WebServer, tmp_path: Path) -> None:
    with WebServer(place.root) as proxy, source_of(f"{server.url}/images", f"proxy+{proxy.url}") as source:
        digest, index = await trio.to_thread.run_sync(index_of, source, place)
        async with running(tmp_path / "blocks") as blocks:
            assert place.content in await whole(await blocks.open(digest, index, source))
            assert blocks.snapshot()["upstreams"][f"proxy+{proxy.url}"] == place.packs
        assert {one.path for one in server.seen} == {"/images/tags/t"}
        assert all(one.path.startswith(f"{server.url}/images/") for one in proxy.seen)


def test_blobs_of_a_registry_are_asked_for_by_their_digests(place: Place, tmp_path: Path) -> None:
    blobs = tmp_path / "mirror/v2/team/app/blobs"
    blobs.mkdir(parents=True)
    for path in place.store.glob("*/*/*"):
        (blobs / f"sha256:{path.name}").symlink_to(path)
    with WebServer(tmp_path) as server:
        mirrors = Mirrors(StoreSettings(url="oci://registry.example/team/app", mirrors=(f"{server.url}/mirror",)))
        (path,) = place.store.glob("indexes/*/*")
        assert mirrors.document(f"/indexes/{path.name[:2]}/{path.name}".encode(), path.name) == path.read_bytes()
        assert len(mirrors.all[0].read(Index(path.read_bytes()).packs[0], 5, 10)) == 10
        mirrors.close()


@pytest.mark.mount
def test_a_mount_whose_cache_is_killed(place: Place, server: WebServer, cache: Nginx, service: Service) -> None:
    """The command, the daemon, the kernel: what one mirror does not bring, the store does, and the status says it."""
    target = service.mountpoint()
    service.environment["IMAGEFS_MIRROR"] = cache.url
    service.ok("mount", "--plane", "tree", "--no-record", f"{server.url}/images#t", str(target))
    with (target / "data").open("rb", buffering=0) as file:
        begin = file.read(100_000)
        cache.kill()
        assert begin + file.read() == place.content
    blocks = service.status()["blocks"]
    assert blocks["failures"] == 0
    assert blocks["upstreams"]["store"] + blocks["upstreams"][cache.url] == place.packs
    assert f"not from {cache.url}" in service.ok("status")
    service.ok("umount", str(target))
