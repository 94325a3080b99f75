"""Measurement of `bench container`: makes the image, sets up link and registry, measures in interleaved rounds.

Order: the image and the store; recording a start; what peers want; then for each rate of the link rounds of all
systems, each round beginning one system further on; warm starts, twenty starts at once and the time of Prepare, on one
warm node of each system. A system that fails becomes a note, and the others go on.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench.container.node import Node, at_once, end_node, highest_layer, prepared
from bench.container.plan import ratios
from bench.container.snapshotters import OVERLAYFS, Machine, Peer, machine, peers_here
from bench.harness import Say
from bench.harness.environment import remove_mounts, remove_tree, work_folder
from bench.harness.host import Host
from bench.harness.link import Link, linked
from bench.harness.processes import PeakMemory, pss, tree
from bench.harness.programs import output, run, tool_version
from bench.harness.results import Document, summary
from bench.harness.rounds import Rounds, Store, in_turn
from bench.image import runtime
from bench.image.measure import WORK, Options, image_facts, measured_links, push
from bench.image.plan import RATES, case
from bench.image.source import Image, Source

__all__ = ["WORK", "Options", "measure"]

MB, MIB = 1e6, 1 << 20
_TAG = "bench"
_REPEATED = 5


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

    def store_folder(self, name: str) -> Path:
        """A directory store behind the link: `lazy` without a trace, `traced` with one."""
        return self.link.folder / name

    def machine(self, system: str) -> Any:
        """A node that has nothing, for this system."""
        store = f"{self.link.url}/{'lazy' if system == 'imagefs:first' else 'traced'}"
        return machine(self.work, system.partition(":")[0], self.link.registry, store)


def measure(options: Options, say: Say, store: Store) -> Document:
    """The document, which `store` gets anew after each part. Raises BenchError where nothing can be measured."""
    work = options.work
    with work_folder(work, _tidy) as stack:
        image = Source(work, say, options.mirror).image(options.recipe, 1)
        wire = stack.enter_context(linked(work, work / "stores", registry=True))
        push(image, wire, say)
        facts = {
            "tools": {"containerd": output("containerd", "--version").split()[2], "runc": tool_version("runc")},
            "image": image_facts(options, image),
            "link": measured_links(wire, say),
            "peers": [],
        }
        session = _Session.begin(
            "container", options, facts, summary(ratios()), say, store, options=options, link=wire, image=image
        )
        for part in (_store, _peers, _starts, _warm):
            part(session)
            session.document.environment["peers"] = [peer.name for peer in session.peers]
            session.keep()
    return session.document


def _store(session: _Session) -> None:
    """The image in a store without a trace, and a copy of that with the trace of one start and its hot device."""
    session.say("building the image into a store")
    runtime.build(session.image.name, session.store_folder("lazy"), _TAG)
    run("cp", "--archive", "--link", session.store_folder("lazy"), session.store_folder("traced"))
    session.say("recording a start")
    runtime.record(session.work, session.store_folder("traced"), _TAG)


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


def _tidy(work: Path) -> None:
    """Take away what a benchmark leaves when it is killed, or fails in the wrong place."""
    Host(work / "host").stop()
    end_node(work / "node")
    remove_mounts(work)
    for name in ("host", "peer", "stores", "registry"):
        remove_tree(work / name)
