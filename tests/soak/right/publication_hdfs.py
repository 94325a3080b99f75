"""Publications on a real HDFS whose writer is stopped, or cut off by the network, for up to twice a lease of 3 s.

Each round has a writer of FILES files in a process of its own and, on this side, others who come for the same files. A
round either stops the process by SIGSTOP, or has it in a network namespace of its own and takes the link away that
leads from there to the NameNode and all DataNodes. Nothing is refused then: packets are lost, and what is sent again
once the link is back arrives late.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from ipaddress import IPv4Address, IPv4Network

import trio

from stripefs.errors import NotFound, StoreError
from stripefs.executor import Lane
from stripefs.settings import StoreSettings
from stripefs.store.base import Store
from stripefs.store.striped import StripedStore
from stripefs.store.url import open_store
from stripefs.write import FileUpload, Layout, UploadManager, WritePolicy
from tests.soak.right import Context, Violation
from tests.tools.hdfs import HdfsInstance

__all__ = ["ROUNDS", "begin", "drafts_of", "play"]

ROUNDS = {"stopped": 10, "partitioned": 14}
"""Rounds by the fault of the writer. Fourteen rounds make more than 210 publications, a tenth of all."""

FILES = 10
"""Of each round."""

SHORT_LEASE = 3.0

LAYOUTS = list(Layout)

_LAST_LINK = 63
"""Of an instance's network, in links of four addresses: further than any DataNode's."""


class Cut:
    """A network namespace whose only way, to the NameNode's namespace, can be taken away and given back.

    It is named as a DataNode's, so that stopping the instance removes it where a killed check has left it.
    """

    def __init__(self, hdfs: HdfsInstance) -> None:
        self.name = f"hdfs-{hdfs.name}-dn{_LAST_LINK}"
        self._router = f"hdfs-{hdfs.name}-nn"
        network = IPv4Network(f"{hdfs.rpc.partition(':')[0]}/24", strict=False)
        self._gateway: IPv4Address = network[4 * _LAST_LINK + 1]
        self._address: IPv4Address = network[4 * _LAST_LINK + 2]

    @contextlib.contextmanager
    def made(self) -> Iterator[list[str]]:
        """The words before a command that is to run inside."""
        _ip("netns", "add", self.name)
        try:
            link = ["link", "add", "cut", "type", "veth", "peer", "name", "eth0", "netns", self.name]
            _ip("-n", self._router, *link)
            _ip("-n", self._router, "address", "add", f"{self._gateway}/30", "dev", "cut")
            _ip("-n", self.name, "address", "add", f"{self._address}/30", "dev", "eth0")
            for namespace, interface in ((self._router, "cut"), (self.name, "eth0"), (self.name, "lo")):
                _ip("-n", namespace, "link", "set", interface, "up")
            _ip("-n", self.name, "route", "add", "default", "via", str(self._gateway))
            yield ["nsenter", f"--net=/run/netns/{self.name}"]
        finally:
            _ip("-n", self._router, "link", "delete", "cut", check=False)  # first: a namespace may live on unseen
            _ip("netns", "delete", self.name, check=False)

    def set(self, state: str) -> None:
        """`down` loses every packet, in both directions; `up` lets them through again."""
        _ip("-n", self._router, "link", "set", "cut", state)


def _ip(*arguments: str, check: bool = True) -> None:
    subprocess.run(["ip", *arguments], check=check, capture_output=True)


@contextlib.asynccontextmanager
async def drafts_of(
    view: StripedStore, wanted: WritePolicy, lease: float, owner: str = ""
) -> AsyncIterator[UploadManager]:
    uploads = UploadManager(view, wanted, lease=lease, owner=owner)
    async with trio.open_nursery() as nursery:
        await nursery.start(uploads.run)
        try:
            yield uploads
        finally:
            await uploads.aclose()
            nursery.cancel_scope.cancel()


async def begin(view: StripedStore, uploads: UploadManager, layout: Layout, *, append: bool, path: bytes) -> FileUpload:
    try:
        replacing = (await Lane("looking", 1).run("looking", view.stat, path)).identity
    except NotFound:
        replacing, append = None, False
    return await uploads.begin(path, replacing=replacing, append=append, layout=layout)


def play(context: Context, how: str, number: int, counters: Counter[str]) -> None:
    """One round. Raises Violation as `publication.check`."""
    hdfs, rng = context.hdfs(), context.random(f"hdfs {how} {number}")
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(contextlib.closing(open_store(_settings(hdfs.url, str(hdfs.conf)))))
        folder = f"/publication-{how}-{number}".encode()
        store.mkdir(folder)
        paths = [folder + b"/%d" % index for index in range(FILES)]
        job = json.dumps([hdfs.url, str(hdfs.conf), [path.decode() for path in paths], rng.random()])
        cut = Cut(hdfs)
        inside = stack.enter_context(cut.made()) if how == "partitioned" else []
        command = [*inside, sys.executable, "-m", "tests.soak.right.publication_hdfs", job]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                if process.stdout.readline() != "begun\n":
                    raise Violation(f"hdfs {number}: the writer did not begin")

                async def disturb() -> None:
                    await trio.sleep(rng.uniform(0, 1.5))
                    if how == "partitioned":
                        cut.set("down")
                        await trio.sleep(rng.uniform(SHORT_LEASE / 2, 2 * SHORT_LEASE))
                        cut.set("up")
                    else:
                        process.send_signal(signal.SIGSTOP)
                        await trio.sleep(rng.uniform(0, 2 * SHORT_LEASE))
                        process.send_signal(signal.SIGCONT)

                found = trio.run(_beside, store, paths, disturb, rng)
                told = json.loads(process.stdout.readline())
            finally:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        view = StripedStore(store)
        for path, closed in zip(paths, told, strict=True):
            seen, next_closed = found[path]
            _judge(view, path, closed=closed, seen=seen, next_closed=next_closed, counters=counters)
            counters[f"hdfs_{how}"] += 1 + (seen is not None)


def _settings(url: str, conf: str) -> StoreSettings:
    return StoreSettings(url=url, hadoop_conf=conf)


def _judge(
    view: StripedStore, path: bytes, *, closed: bool, seen: bytes | None, next_closed: bool, counters: Counter[str]
) -> None:
    """seen: what stood there when the other writer had the lock; None where it never had."""
    first, second = _content(path, 1), _content(path, 2)
    try:
        stands = bytes(view.get(path))
    except NotFound:
        stands = b""
    counters["publications"] += 1 + (seen is not None)
    counters["closed"] += closed + next_closed
    counters["hdfs_taken_over"] += seen is not None and seen != first
    counters["hdfs_eio"] += not closed
    if next_closed and stands != second:
        raise Violation(f"{path!r}: the writer that took over closed its file, and it does not stand")
    if closed and first not in (stands if seen is None or not next_closed else seen, seen):
        raise Violation(f"{path!r}: the first writer closed its file, and it was lost")


async def _beside(
    store: Store, paths: list[bytes], disturb: Callable[[], Awaitable[None]], rng: random.Random
) -> dict[bytes, tuple[bytes | None, bool]]:
    """Disturb the writer for a while; of each path what another writer saw that had the lock, and whether it closed."""
    found: dict[bytes, tuple[bytes | None, bool]] = {}

    view = StripedStore(store)
    async with drafts_of(view, WritePolicy(io_timeout=20.0), SHORT_LEASE) as uploads:

        async def write(path: bytes) -> None:
            await trio.sleep(rng.uniform(0, 3 * SHORT_LEASE))
            seen, closed = None, False
            try:
                upload = await begin(view, uploads, rng.choice(LAYOUTS), append=False, path=path)
                try:
                    seen = bytes(await trio.to_thread.run_sync(view.get, path))
                except NotFound:
                    seen = b""
                await upload.write(0, _content(path, 2))
                await upload.publish(final=True)
                closed = True
            except StoreError:
                closed = False
            found[path] = (seen, closed)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(disturb)
            for path in paths:
                nursery.start_soon(write, path)
    return found


def _content(path: bytes, writer: int) -> bytes:
    return b"%d %b;" % (writer, path) * 5000


async def _first(url: str, conf: str, names: list[str], seed: float) -> None:
    rng, closed = random.Random(seed), {}
    store = open_store(_settings(url, conf))
    view = StripedStore(store)
    async with drafts_of(view, WritePolicy(io_timeout=20.0), SHORT_LEASE) as uploads:

        async def write(path: bytes, upload: FileUpload) -> None:
            await trio.sleep(rng.uniform(0, 2))
            try:
                await upload.write(0, _content(path, 1))
                await upload.publish(final=True)
                closed[path] = True
            except StoreError:
                closed[path] = False

        paths = [name.encode() for name in names]
        begun = [(path, await begin(view, uploads, rng.choice(LAYOUTS), append=False, path=path)) for path in paths]
        print("begun", flush=True)
        async with trio.open_nursery() as nursery:
            for path, upload in begun:
                nursery.start_soon(write, path, upload)
    print(json.dumps([closed[path] for path in paths]), flush=True)


if __name__ == "__main__":
    trio.run(_first, *json.loads(sys.argv[1]))
