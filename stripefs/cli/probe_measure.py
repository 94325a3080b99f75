"""The measurements behind `stripefs probe`: one stream, then the reader with all data hosts, on parts of one file.

The two parts do not overlap, so that no data host answers the second from a cache that the first filled.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from stripefs.cli.bottleneck import Bottleneck, Sample, judge, utilisation
from stripefs.errors import ConfigError, HostFailed, NotFound, StoreError
from stripefs.read import Reader
from stripefs.settings import MIB, Settings
from stripefs.store.base import Handle, Host, Kind, Status, Store
from stripefs.units import shown

__all__ = ["Report", "big_file", "probe", "unreachable"]

REQUEST = MIB
"""Bytes the kernel asks for at most at once, hence what the parallel reading asks of the reader."""

CONNECT_WITHIN = 2.0
_MOST_ENTRIES = 10_000
_BY_NAME = "if their names resolve to addresses that this host can reach, --use-datanode-hostname helps"

Progress = Callable[[int], None]


@dataclass(slots=True)
class Report:
    """Result of a probe; `as_dict` is its --json form, sizes in bytes, rates in bytes a second."""

    source: str
    path: str
    status: Status
    transport: dict[str, str]
    hosts: list[Host]
    unreachable: list[tuple[str, str]]
    one: Sample
    parallel: Sample
    host_rate: float
    utilisation: dict[str, float]
    verdict: Bottleneck
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        def sample(value: Sample) -> dict[str, object]:
            return {
                "bytes": value.size,
                "seconds": round(value.seconds, 3),
                "rate": round(value.rate),
                "cpu_seconds": round(value.cpu_seconds, 3),
                "hosts": dict(value.hosts),
            }

        return {
            "source": self.source,
            "path": self.path,
            "length": self.status.length,
            "block_size": self.status.block_size,
            "replication": self.status.replication,
            "store": self.transport,
            "hosts": [{"name": h.name, "address": h.reachable_as, "live": h.live} for h in self.hosts],
            "unreachable": [{"address": address, "error": error} for address, error in self.unreachable],
            "one_stream": sample(self.one),
            "parallel": sample(self.parallel),
            "host_rate": round(self.host_rate),
            "utilisation": {name: round(value, 3) for name, value in self.utilisation.items()},
            "limit": self.verdict.limit,
            "reason": self.verdict.reason,
            "advice": self.verdict.advice,
            "notes": self.notes,
        }


def big_file(store: Store, path: bytes) -> tuple[bytes, Status]:
    """`path` itself when it is a file, else the largest file directly in that directory. Raises NotFound."""
    status = store.stat(path)
    if status.kind is Kind.FILE:
        return path, status
    best: Status | None = None
    seen = 0
    for batch in store.scandir(path):
        for entry in batch:
            if entry.kind is Kind.FILE and (best is None or entry.length > best.length):
                best = entry
        seen += len(batch)
        if seen >= _MOST_ENTRIES:
            break
    if best is None:
        raise NotFound(f"{shown(path)} holds no file", hint="name a big file")
    return path.rstrip(b"/") + b"/" + best.name, best


async def unreachable(hosts: Sequence[Host]) -> dict[str, tuple[str, str]]:
    """The live `hosts` that take no TCP connection from here: by name, their address and why not."""
    found: dict[str, tuple[str, str]] = {}

    async def knock(host: Host, address: str) -> None:
        name, _, port = address.rpartition(":")
        try:
            with trio.fail_after(CONNECT_WITHIN):
                await (await trio.open_tcp_stream(name.strip("[]"), int(port))).aclose()
        except trio.TooSlowError:
            found[host.name] = (address, f"no answer in {CONNECT_WITHIN:g} s")
        except OSError as error:
            found[host.name] = (address, str(error))

    async with trio.open_nursery() as nursery:
        for host in hosts:
            address = host.reachable_as or host.name
            if host.live and address.rpartition(":")[2].isdigit():
                nursery.start_soon(knock, host, address)
    return dict(sorted(found.items()))


async def probe(store: Store, path: bytes, settings: Settings, size: int, progress: Progress) -> Report:
    """Measure on the file at `path`, `size` bytes each way at most. `progress` is called with the bytes of every read.

    Raises what the store raises; where data hosts are out of reach the error names them.
    """
    path, status = await trio.to_thread.run_sync(big_file, store, path)
    part = min(size, status.length // 2)
    if part <= 0:
        raise ConfigError(f"{shown(path)} is too small to measure", hint="name a big file")
    hosts = list(await trio.to_thread.run_sync(store.hosts))
    missing = await unreachable(hosts)
    try:
        one, host_rate = await _one_stream(store, path, part, settings.read.range_size, progress, set(missing))
        parallel, link = await _parallel(store, path, part, settings, progress)
    except StoreError as error:
        if not missing:
            raise
        raise HostFailed(f"{error.message}; out of reach from here: {_addresses(missing)}", hint=_BY_NAME) from error
    used = utilisation(parallel, host_rate=host_rate, cores=len(os.sched_getaffinity(0)), link=link)
    verdict = judge(one, parallel, used, live_hosts=sum(host.live for host in hosts))
    return Report(
        source=store.url,
        path=shown(path),
        status=status,
        transport=store.describe(),
        hosts=hosts,
        unreachable=list(missing.values()),
        one=one,
        parallel=parallel,
        host_rate=host_rate,
        utilisation=used,
        verdict=verdict,
        notes=_notes(store, part, settings, bool(missing)),
    )


def _addresses(missing: Mapping[str, tuple[str, str]], most: int = 8) -> str:
    told = [f"{address} ({why})" for address, why in missing.values()]
    return ", ".join(told[:most] + ([f"and {len(told) - most} more"] if len(told) > most else []))


def _notes(store: Store, part: int, settings: Settings, missing: bool) -> list[str]:
    notes = [_BY_NAME] if missing else []
    if part < 8 * settings.read.range_size:
        notes.append("the file is small: name a bigger one for figures to rely on")
    if not store.capabilities.locations:
        notes.append("this store does not say where bytes lie, so no host or placement can be blamed")
    return notes


async def _one_stream(
    store: Store, path: bytes, size: int, step: int, progress: Progress, missing: Set[str]
) -> tuple[Sample, float]:
    """Read the first `size` bytes as a plain client does, and the median rate at which one host served a range.

    Where the host can be chosen it is the first of each block's that is not `missing`.
    """
    rates: list[float] = []
    hosts: dict[str, int] = {}

    def read(handle: Handle, offset: int, length: int, host: str) -> None:
        began = time.perf_counter()
        handle.read(offset, length, host=host if store.capabilities.choose_host else "")
        rates.append(length / (time.perf_counter() - began))
        if host:
            hosts[host] = hosts.get(host, 0) + length

    handle = await trio.to_thread.run_sync(store.open, path)
    try:
        blocks = list(await trio.to_thread.run_sync(handle.locate, 0, size))
        began, cpu = time.perf_counter(), time.process_time()
        for block in blocks:
            offset, end = block.offset, min(block.offset + block.length, size)
            host = next((name for name in block.hosts if name not in missing), next(iter(block.hosts), ""))
            while offset < end:
                length = min(step, end - offset)
                await trio.to_thread.run_sync(read, handle, offset, length, host)
                progress(length)
                offset += length
        sample = Sample(size, time.perf_counter() - began, time.process_time() - cpu, hosts=hosts)
    finally:
        await trio.to_thread.run_sync(handle.close)
    return sample, statistics.median(rates) if hosts else 0.0


async def _parallel(
    store: Store, path: bytes, size: int, settings: Settings, progress: Progress
) -> tuple[Sample, tuple[str, float] | None]:
    """Read the `size` bytes after those through the reader, as a mount would; and the link that they came through.

    All bytes that arrived meanwhile count: the reader also looks ahead past the part that is read here.
    """
    reader = Reader(store, settings.read, open_next=False)
    async with trio.open_nursery() as nursery:
        await nursery.start(reader.run)
        file = await reader.open(path)
        began, cpu, loop, machine = time.perf_counter(), time.process_time(), time.thread_time(), _machine()
        with _busiest_link() as link:
            for offset in range(size, 2 * size, REQUEST):
                length = min(REQUEST, 2 * size - offset)
                await file.read(offset, length)
                progress(length)
        seconds = time.perf_counter() - began
        arrived = reader.snapshot()["bytes_fetched"]
        sample = Sample(
            arrived,
            seconds,
            time.process_time() - cpu,
            time.thread_time() - loop,
            _busy(machine, _machine()),
            _by_host(reader),
        )
        await file.aclose()
        nursery.cancel_scope.cancel()
    return sample, _speed(link, arrived)


def _by_host(reader: Reader) -> dict[str, int]:
    return {host["name"]: host["bytes"] for host in reader.snapshot()["hosts"] if host["name"] and host["bytes"]}


def _machine() -> tuple[int, int]:
    """Ticks that the processors of this host were idle, and all ticks, since it started (proc(5), stat)."""
    ticks = [int(figure) for figure in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def _busy(before: tuple[int, int], after: tuple[int, int]) -> float:
    idle, total = after[0] - before[0], after[1] - before[1]
    return 1 - idle / total if total else 0.0


@contextmanager
def _busiest_link() -> Iterator[dict[str, int]]:
    """Bytes that each network interface received meanwhile, filled in at the end."""
    found: dict[str, int] = {}
    before = _received()
    yield found
    found |= {name: count - before.get(name, 0) for name, count in _received().items()}


def _received() -> dict[str, int]:
    counts = {}
    for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
        name, _, figures = line.partition(":")
        counts[name.strip()] = int(figures.split()[0])
    return counts


def _speed(received: dict[str, int], size: int) -> tuple[str, float] | None:
    """Name and speed in bytes a second of the interface that most of `size` came through; None where unknown."""
    name = max(received, key=lambda each: received[each], default="")
    if not name or received[name] < size / 2:
        return None
    try:
        megabits = int(Path("/sys/class/net", name, "speed").read_text())
    except (OSError, ValueError):  # loopback and many virtual interfaces have no speed
        return None
    return (name, megabits * 125_000) if megabits > 0 else None
