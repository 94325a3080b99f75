"""`bench container`: makes the image, sets up link and registry, measures in interleaved rounds.

Order: the image and the store; recording a start; what peers want; then for each rate of the link rounds of all
systems, each round beginning one system further on; warm starts, twenty starts at once and the time of Prepare, on one
warm node of each system. A system that fails becomes a note, and the others go on.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench.cluster import Say
from bench.container.node import Node, at_once, end_node
from bench.container.peers import Peer
from bench.container.plan import RATES, case, ratios
from bench.container.prepare import highest_layer, prepared
from bench.container.systems import OVERLAYFS, Machine, machine, peers_here
from bench.environment import first_touch, version
from bench.environment import machine as this_machine
from bench.host import Host
from bench.image import lazy
from bench.image.measure import WORK
from bench.image.recipe import RECIPES, Recipe
from bench.image.source import Image, Source
from bench.link import Link, linked
from bench.processes import PeakMemory, pss, tree
from bench.programs import output, run
from bench.ratios import sum_up
from bench.results import Document
from bench.rounds import Rounds, how_many, in_turn
from bench.tools import compile_programs, locked, remove_mounts, remove_tree

__all__ = ["WORK", "Options", "measure"]

MB, MIB = 1e6, 1 << 20
_TAG = "bench"
_REPEATED = 5


@dataclass(frozen=True, slots=True)
class Options:
    """`rounds` 0 means 2 when quick, else 3; `mirror` "" is the one that apt uses here."""

    quick: bool = False
    large: bool = False
    rounds: int = 0
    work: Path = WORK
    mirror: str = ""

    @property
    def recipe(self) -> Recipe:
        return RECIPES["large" if self.large else "quick" if self.quick else "standard"]


@dataclass(slots=True, kw_only=True)
class _Session(Rounds):
    options: Options
    link: Link
    image: Image
    peers: list[Peer] = field(default_factory=list)

    @property
    def work(self) -> Path:
        return self.options.work

    @property
    def systems(self) -> tuple[str, ...]:
        return (OVERLAYFS, "imagefs", "imagefs:first", *(peer.name for peer in self.peers))

    def reference(self, system: str = OVERLAYFS) -> str:
        """The image in the registry that this system pulls."""
        ending = f"-{system}" if any(peer.name == system for peer in self.peers) else ""
        return f"{self.link.registry}/bench:{self.image.reference}{ending}"

    def store(self, name: str) -> Path:
        """A directory store behind the link: `lazy` without a trace, `traced` with one."""
        return self.link.folder / name

    def machine(self, system: str) -> Any:
        """A node that has nothing, for this system."""
        store = f"{self.link.url}/{'lazy' if system == 'imagefs:first' else 'traced'}"
        return machine(self.work, system.partition(":")[0], self.link.registry, store)


def measure(options: Options, say: Say, store: Callable[[Document], None]) -> Document:
    """Measure. Hands what there is to `store` after each part, and answers the whole.

    Raises BenchError where nothing can be measured.
    """
    with locked(options.work), ExitStack() as stack:
        _tidy(options.work)
        compile_programs()
        stack.callback(_tidy, options.work)
        image = Source(options.work, say, options.mirror).image(options.recipe, 1)
        wire = stack.enter_context(linked(options.work, options.work / "stores", registry=True))
        rounds = how_many(options.rounds, quick=options.quick)
        session = _Session(rounds=rounds, say=say, options=options, link=wire, image=image)
        say("pushing the image to the registry")
        run("skopeo", "copy", "--dest-tls-verify=false", image.name, f"docker://{session.reference()}")
        document = Document("container", version(), _environment(session), notes=session.notes)

        def keep() -> None:
            document.environment["peers"] = [peer.name for peer in session.peers]
            document.rows = session.samples.rows()
            document.ratios = sum_up(session.samples, ratios())
            document.environment["load_15min"] = round(os.getloadavg()[2], 2)
            store(document)

        for part in (_store, _peers, _starts, _warm):
            part(session)
            keep()
    return document


def _store(session: _Session) -> None:
    """The image in a store without a trace, and a copy of that with the trace of one start and its hot device."""
    session.say("building the image into a store")
    lazy.build(session.image.name, session.store("lazy"), _TAG)
    run("cp", "--archive", "--link", session.store("lazy"), session.store("traced"))
    session.say("recording a start")
    lazy.record(session.work, session.store("traced"), _TAG)


def _peers(session: _Session) -> None:
    for peer in peers_here():
        session.say(f"making the image for {peer.name}")
        if session.attempt(f"image for {peer.name}", _convert, peer):
            session.peers.append(peer)


def _convert(session: _Session, peer: Peer) -> None:
    target = f"{session.reference()}-{peer.name}"
    with session.machine(OVERLAYFS) as found:
        peer.convert(found.node, session.reference(), target)


def _starts(session: _Session) -> None:
    for rate in RATES:
        session.link.set_rate(rate)
        for number in range(session.rounds):
            for system in in_turn(session.systems, number):
                session.take(case(rate), system, number, partial(_start, session, system, number))


def _start(session: _Session, system: str, number: int) -> dict[str, float]:
    """From the pull to what the container prints, on a node that has nothing; then until the image is local."""
    with session.machine(system) as found, ExitStack() as stack:
        watched = stack.enter_context(found.host.peak_memory()) if found.host else None
        before, cpu, begin = session.link.moved(), found.node.cpu, time.monotonic()
        pull = found.node.pull(session.reference(system))
        with found.node.start(session.reference(system)) as start:
            values = {
                "time": pull + start.seconds,
                "pull": pull,
                "inside": start.inside,
                "moved": (session.link.moved() - before) / MB,
                "cpu": found.node.cpu - cpu,
            }
            if found.host is not None:
                found.host.ready()
                found.host.await_blocks()
                values["local"] = time.monotonic() - begin
        stack.close()
        if watched is not None and system == "imagefs":
            _memory(session, found, watched, number)
    return values


def _memory(session: _Session, found: Machine, watched: PeakMemory, number: int) -> None:
    assert found.snapshotter is not None
    session.samples.add("daemon", "imagefs", number, {"peak_pss": watched.peak / MIB})
    idle = pss(tree(found.snapshotter.pid)) / MIB
    session.samples.add("snapshotter", "imagefs", number, {"idle_pss": idle})


def _warm(session: _Session) -> None:
    session.link.set_rate(0)
    parent = highest_layer(session.image.layout, session.image.reference)
    for number in range(session.rounds):
        for system in in_turn([one for one in session.systems if one != "imagefs:first"], number):
            session.say(f"warm starts of {system}, round {number + 1} of {session.rounds}")
            session.attempt(f"warm {system}", _warm_system, system, number, parent)


def _warm_system(session: _Session, system: str, number: int, parent: str) -> None:
    """Of a node on which the image is local: medians of starts after the second, Prepare, and of many at once."""
    image = session.reference(system)
    with session.machine(system) as found:
        if found.host is not None:
            found.host.environment["IMAGEFS_BACKGROUND_RATE"] = "0"
        found.node.pull(image)
        with found.node.start(image):
            if found.host is not None:
                found.host.ready()
                found.host.await_local()
        starts = [_again(found.node, image) for _ in range(1 + _REPEATED)][1:]
        values = {name: statistics.median(one[name] for one in starts) for name in starts[0]}
        session.samples.add("warm", system, number, values)
        if system in (OVERLAYFS, "imagefs"):
            session.samples.add("prepare", system, number, {"prepared": prepared(found.node, parent)})
        times = [at_once(found.node, image) for _ in range(_REPEATED)]
        session.samples.add("at_once", system, number, {"time": statistics.median(times)})


def _again(node: Node, image: str) -> dict[str, float]:
    with node.start(image) as start:
        return {"time": start.seconds, "inside": start.inside}


def _environment(session: _Session) -> dict[str, Any]:
    """Facts as JSON values; the link's as it was measured just now."""
    found: dict[str, str] = {}
    for rate in RATES:
        found[f"{rate / MB:g}"] = str(session.link.measure(rate))
        session.say(f"the link at {rate / MB:g} MB/s: {found[f'{rate / MB:g}']}")
    image = session.image
    return {
        **this_machine(first_touch()),
        "tools": {"containerd": output("containerd", "--version").split()[2], "runc": _runc()},
        "image": {
            "name": session.options.recipe.name,
            "layers": image.layers,
            "compressed_mb": round(image.compressed / MB, 1),
        },
        "link": found,
        "rounds": session.rounds,
        "quick": session.options.quick,
    }


def _runc() -> str:
    return output("runc", "--version").splitlines()[0].split()[-1]


def _tidy(work: Path) -> None:
    """Take away what a benchmark leaves when it is killed, or fails in the wrong place."""
    Host(work / "host").stop()
    end_node(work / "node")
    remove_mounts(work)
    for name in ("host", "peer", "stores", "registry"):
        remove_tree(work / name)
