"""The model against real fleets: 1, 2, 4 and 8 nodes of `bench.fleet.namespaces` fetch one image at once.

Two ways: `today`, in which each node fetches whole layers from the store and unpacks them, and `ours`, in which a
recorded start is replayed from a mirror. The model's facts of a node beside rates and sizes (seconds that pass without
bytes, processor time) are measured by one node without any limit of rates; nothing is fitted to what is then compared.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.fleet.model import MIRROR, STORE, Stage, World, simulate
from bench.fleet.namespaces import NodeHost, Rates, nodes
from bench.harness import BenchError
from bench.harness.environment import cold
from bench.harness.host import Host, await_plan, host
from bench.harness.link import RTT, Link
from bench.harness.processes import cpu_seconds
from bench.harness.programs import last_line, run
from imagefs.blocks.upstream import MIRROR_RANGE

__all__ = ["RATES", "Image", "Played", "calibrate", "make_image", "play", "predicted"]

RATES = Rates(store=20e6, mirror=60e6, node=30e6)

_MIB = 1 << 20
_LAYERS = 3
_TAG = "t"
_PROGRAM = "bench.fleet.node"
_LIMIT = 600.0  # seconds for a fleet
_STREAMS = 2
"""Of a replayed start: what is fetched ahead, and what the job waits for just then."""


@dataclass(frozen=True, slots=True)
class Image:
    """As it lies below the folder that the store serves. Sizes in bytes."""

    whole: int
    touched: int
    names: Path


def make_image(work: Path, folder: Path, files: int) -> Image:
    """An image of random files of 1 MiB, half of which its recorded start reads, and the same as layers."""
    source, store = work / "source", folder / "images"
    run("rm", "-rf", "--", str(source), str(store), str(folder / "layers"))
    source.mkdir(parents=True)
    store.mkdir(parents=True)
    chance = random.Random(files)
    names = [f"file{number:04}" for number in range(files)]
    for name in names:
        (source / name).write_bytes(chance.randbytes(_MIB))
    touched = names[: files // 2]
    chosen = work / "touched.json"
    chosen.write_text(json.dumps(touched))
    (folder / "layers").mkdir()
    for number in range(_LAYERS):
        run("tar", "-c", "-C", str(source), "-f", str(folder / f"layers/{number}.tar"), *names[number::_LAYERS])
    with host(work) as machine:
        machine.command("build", f"dir:{source}", str(store), "--tag", _TAG)
        _record(work, machine, store, touched)
    run("rm", "-rf", "--", str(source))
    return Image(files * _MIB, len(touched) * _MIB, chosen)


def _record(work: Path, machine: Host, store: Path, touched: Sequence[str]) -> None:
    mountpoint = work / "mnt"
    mountpoint.mkdir(exist_ok=True)
    machine.command("mount", f"{store}#{_TAG}", str(mountpoint))
    for name in touched:
        (mountpoint / name).read_bytes()
    machine.ready()
    await_plan(store)
    machine.command("umount", str(mountpoint))
    machine.command("optimize", f"{store}#{_TAG}")


@dataclass(frozen=True, slots=True)
class Played:
    """`slowest` in seconds; `cpu`: processor seconds of all nodes together."""

    slowest: float
    cpu: float


def play(work: Path, link: Link, image: Image, way: str, count: int, rates: Rates = RATES) -> Played:
    """So many nodes start together. Raises BenchError."""
    with nodes(work, link, count, rates) as fleet:
        if way == "ours":
            for one in fleet:
                one.environment |= {"IMAGEFS_MIRROR": f"{one.mirror}/images", "IMAGEFS_BACKGROUND_RATE": "0"}
                one.start_daemon()
        cold()
        daemons = [one.status()["supervisor_pid"] for one in fleet] if way == "ours" else []
        used = sum(map(cpu_seconds, daemons))
        running = [one.begin(sys.executable, "-m", _PROGRAM, *_arguments(one, image, way)) for one in fleet]
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()
        said = [_go(process) for process in running]
        done = [_result(process) for process in said]
        cpu = sum(one["cpu"] for one in done) + sum(map(cpu_seconds, daemons)) - used
        if way == "ours":
            for one in fleet:
                one.command("umount", str(one.folder / "mnt"))
        return Played(max(one["seconds"] for one in done), cpu)


def _arguments(one: NodeHost, image: Image, way: str) -> list[str]:
    mountpoint = str(one.folder / "mnt")
    if way == "ours":
        return ["lazy", f"{one.store}/images#{_TAG}", mountpoint, str(image.names)]
    return ["whole", f"{one.store}/layers", mountpoint, str(_LAYERS)]


def _go(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    process.stdin.flush()
    return process


def _result(process: subprocess.Popen[bytes]) -> dict[str, float]:
    out, errors = process.communicate(timeout=_LIMIT)
    if process.returncode:
        raise BenchError(f"a node failed: {last_line(errors)}")
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    return found


def calibrate(work: Path, link: Link, image: Image) -> dict[str, Stage]:
    """The stage that stands for each way, with what one node takes beside the bytes: the processor time, and seconds
    that the model does not account for when rates have no limit."""
    stages = {
        "today": Stage("today", image.whole, STORE, _LAYERS, image.whole / _LAYERS),
        "ours": Stage("ours", image.touched, MIRROR, _STREAMS, MIRROR_RANGE),
    }
    for way, stage in stages.items():
        alone = play(work, link, image, way, 1, Rates())
        stage = dataclasses.replace(stage, cpu=alone.cpu)
        fixed = max(alone.slowest - predicted(stage, 1, Rates()), 0.0)
        stages[way] = dataclasses.replace(stage, fixed=fixed)
    return stages


def predicted(stage: Stage, count: int, rates: Rates = RATES) -> float:
    """Seconds of the slowest node, by the model, of a fleet played on this machine."""
    cores = os.cpu_count() or 1
    store, mirror, node = (rate or math.inf for rate in (rates.store, rates.mirror, rates.node))
    world = World(store=store, node=node, mirrors=1, mirror=mirror, latency=RTT, cores=cores, shared=True)
    return simulate([stage], count, world).slowest
