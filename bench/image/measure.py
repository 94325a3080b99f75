"""Measurement of `bench image`: makes the images, sets up the link, measures in interleaved rounds.

Order: images; what needs no link (unpacking against building, bytes touched, the local disk); recording a start and
making the hot device; then for each rate of the link rounds of all systems, each round beginning one system further on;
warm starts; the daemon's memory; the second build. A system that fails becomes a note, and the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import Say
from bench.harness.environment import CACHE, cold, remove_mounts, remove_tree, work_folder
from bench.harness.host import Host, host
from bench.harness.link import Link, linked
from bench.harness.programs import Start, run, tool_version
from bench.harness.results import Document, summary
from bench.harness.rounds import Options as HarnessOptions
from bench.harness.rounds import Rounds, Store, in_turn
from bench.harness.sizes import digests, lz4_of_new
from bench.image import local, runtime
from bench.image.plan import RATES, Sizes, case, derive, ratios
from bench.image.recipe import RECIPES, Recipe
from bench.image.source import Image, Source
from imagefs.settings import DaemonSettings

__all__ = ["WORK", "Options", "image_facts", "measure", "measured_links", "push"]

WORK = CACHE / "bench-image"

MB, MIB = 1e6, 1 << 20
_TAG = "bench"
_SYSTEMS = ("local", "imagefs:lazy", "imagefs", "imagefs:no_daemon", "imagefs:tree", "fetch_all")


@dataclass(frozen=True, slots=True)
class Options(HarnessOptions):
    """`mirror` "" is the one that apt uses here."""

    large: bool = False
    work: Path = WORK
    mirror: str = ""

    @property
    def recipe(self) -> Recipe:
        return RECIPES["large" if self.large else "quick" if self.quick else "standard"]


@dataclass(slots=True, kw_only=True)
class _Session(Rounds):
    options: Options
    link: Link
    first: Image
    second: Image
    tree: local.Tree

    @property
    def work(self) -> Path:
        return self.options.work

    def store_folder(self, name: str) -> Path:
        """A directory store behind the link: `lazy` without a trace, `traced` with it, `second` with the next build."""
        return self.link.folder / name

    def url(self, name: str) -> str:
        return f"{self.link.url}/{name}#{_TAG}"

    def copy(self, name: str, new: str) -> None:
        """Make the store `new` of all that `name` has; objects never change, so they may share their bytes."""
        run("cp", "--archive", "--link", self.store_folder(name), self.store_folder(new))


def measure(options: Options, say: Say, store: Store) -> Document:
    """The document, which `store` gets anew after each part. Raises BenchError where nothing can be measured."""
    work = options.work
    with work_folder(work, _tidy) as stack:
        source = Source(work, say, options.mirror)
        first, second = (source.image(options.recipe, build) for build in (1, 2))
        tree = stack.enter_context(local.on_ext4(work, first))
        wire = stack.enter_context(linked(work, work / "stores", registry=True))
        push(first, wire, say)
        facts = {
            "tools": {name: tool_version(name) for name in ("skopeo", "umoci", "runc")},
            "image": {**image_facts(options, first), "size_mb": round(tree.size / MB, 1), "files": tree.files},
            "local": {"device": tree.device, "read_ahead_kib": tree.read_ahead_kib},
            "link": measured_links(wire, say),
        }
        session = _Session.begin(
            "image",
            options,
            facts,
            summary(ratios()),
            say,
            store,
            options=options,
            link=wire,
            first=first,
            second=second,
            tree=tree,
        )
        for part in _PARTS:
            part(session)
            session.keep()
    return session.document


def push(image: Image, link: Link, say: Say) -> str:
    """Push the image to the registry behind the link; the reference that it has there."""
    say("pushing the image to the registry")
    reference = f"{link.registry}/bench:{image.reference}"
    run("skopeo", "copy", "--dest-tls-verify=false", image.name, f"docker://{reference}")
    return reference


def image_facts(options: Options, image: Image) -> dict[str, Any]:
    """Facts of the image as JSON values."""
    compressed = round(image.compressed / MB, 1)
    return {"name": options.recipe.name, "layers": image.layers, "compressed_mb": compressed}


def measured_links(link: Link, say: Say) -> dict[str, str]:
    """The link at each rate, measured just now, in words. Raises BenchError."""
    found: dict[str, str] = {}
    for rate in RATES:
        found[f"{rate / MB:g}"] = str(link.measure(rate))
        say(f"the link at {rate / MB:g} MB/s: {found[f'{rate / MB:g}']}")
    return found


def _builds(session: _Session) -> None:
    """Building against unpacking. The last store built is the one without a trace."""
    for number in range(session.rounds):
        session.say(f"build and unpack, round {number + 1} of {session.rounds}")
        for what, function in [("umoci", _unpack), ("imagefs build", _build)][:: 1 - 2 * (number % 2)]:
            session.attempt(what, function, number)


def _unpack(session: _Session, number: int) -> None:
    session.samples.add("build", "umoci", number, {"time": local.unpack_seconds(session.work, session.first)})


def _build(session: _Session, number: int) -> None:
    remove_tree(session.store_folder("lazy"))
    cold()
    report = runtime.build(session.first.name, session.store_folder("lazy"), _TAG)
    session.samples.add("build", "imagefs", number, _stored(report))


def _stored(report: runtime.Built) -> dict[str, float]:
    return {"time": report.seconds, "stored": report.blocks / MB, "metadata": report.metadata / MB}


def _touched(session: _Session) -> None:
    session.say("counting the pages that a start touches")
    session.attempt("touched", _count_touched)


def _count_touched(session: _Session) -> None:
    session.samples.add("touched", "local", 0, {"fetched": local.touched(session.work, session.first) / MB})


def _recorded(session: _Session) -> None:
    session.say("recording a start")
    session.attempt("record", _record)


def _record(session: _Session) -> None:
    """Record one start on a copy of the store and make its hot device."""
    session.copy("lazy", "traced")
    runtime.record(session.work, session.store_folder("traced"), _TAG)


def _starts(session: _Session) -> None:
    ahead = 0
    if "record" not in session.failed:
        published = runtime.published(session.store_folder("traced"), _TAG)
        ahead, session.document.environment["image"]["codecs"] = published.ahead, published.codecs
    sizes = Sizes(session.first.compressed, ahead)
    for rate in RATES:
        session.link.set_rate(rate)
        for number in range(session.rounds):
            session.say(f"{case(rate)}, round {number + 1} of {session.rounds}")
            for system in in_turn(_SYSTEMS, number):
                session.attempt(system, _start, rate, system, number)
            derive(session.samples, rate, number, sizes)


def _start(session: _Session, rate: float, system: str, number: int) -> None:
    if system == "local":
        cold()
        with runtime.runc(session.tree.bundle, "local") as start:
            values = {"time": start.seconds, "inside": start.inside}
    elif system == "fetch_all":
        fetched = local.fetch_all(session.work, session.first, session.link)
        values = {"time": fetched.total, "moved": fetched.moved / MB}
    else:
        store = "lazy" if system == "imagefs:lazy" else "traced"
        with host(session.work, daemon=system != "imagefs:no_daemon") as machine:
            values = _cold_start(session, machine, session.url(store), _plane(system))
    session.samples.add(case(rate), system, number, values)


def _cold_start(session: _Session, machine: Host, image: str, options: list[str]) -> dict[str, float]:
    before = session.link.moved()
    with runtime.start(machine, image, *options) as start:
        moved, fetched = session.link.moved() - before, machine.fetched()
    return {"time": start.seconds, "inside": start.inside, "moved": moved / MB, "fetched": fetched / MB}


def _plane(system: str) -> list[str]:
    return ["--plane", "tree"] if system == "imagefs:tree" else []


_WARM = ("local", "local:unfiltered", "imagefs")
_PREPARED = 11
"""Preparations of which the median is taken."""


def _warm(session: _Session) -> None:
    session.link.set_rate(0)
    for number in range(session.rounds):
        session.say(f"warm starts, round {number + 1} of {session.rounds}")
        session.attempt("warm starts", _warm_starts, number)
        session.attempt("warm imagefs:tree", _warm_tree, number)


def _warm_starts(session: _Session, number: int) -> None:
    """The second of two starts of each system, all in turn on one host, and how long `imagefs run` prepares there,
    with the part of it that Python alone takes."""
    with _local_host(session) as machine:
        for add in (False, True):
            for system in in_turn(_WARM, number):
                with _warm_start(session, machine, system) as start:
                    if add:
                        session.samples.add("warm", system, number, {"time": start.seconds, "inside": start.inside})
        prepared = runtime.prepare_seconds(machine, session.url("traced"), _PREPARED)
        session.samples.add("warm", "imagefs", number, {"prepare": prepared * 1000})
        interpreter = runtime.interpreter_seconds(_PREPARED)
        session.samples.add("warm", "interpreter", number, {"prepare": interpreter * 1000})


def _warm_start(session: _Session, machine: Host, system: str) -> AbstractContextManager[Start]:
    if system == "imagefs":
        return runtime.start(machine, session.url("traced"))
    return runtime.runc(session.tree.bundle, "warm", filtered=system == "local")


def _warm_tree(session: _Session, number: int) -> None:
    with _local_host(session, "--plane", "tree") as machine:
        for _ in range(2):
            with runtime.start(machine, session.url("traced"), "--plane", "tree") as start:
                values = {"time": start.seconds, "inside": start.inside}
    session.samples.add("warm", "imagefs:tree", number, values)


@contextmanager
def _local_host(session: _Session, *options: str) -> Iterator[Host]:
    """One that has the whole image, was told that its start is over, and has learned from it."""
    with host(session.work) as machine:
        with runtime.start(machine, session.url("traced"), *options):
            machine.ready()
            machine.await_local()
        machine.await_rest()
        yield machine


_AT_REST = 15.0
"""Seconds after which a daemon that nobody asks anything is idle."""


def _memory(session: _Session) -> None:
    session.link.set_rate(RATES[0])
    session.say("measuring the daemon's memory")
    session.attempt("memory", _watch_memory)


def _watch_memory(session: _Session) -> None:
    """Of supervisor and worker: the peak from an empty cache until the image is local, and when they came to rest."""
    with host(session.work) as machine:
        with machine.peak_memory() as memory, runtime.start(machine, session.url("traced")):
            machine.ready()
            machine.await_local()
        time.sleep(_AT_REST)
        over = memory.peak - DaemonSettings().memory
        values = {"peak_pss": memory.peak / MIB, "over_budget": over / MIB, "idle_pss": machine.memory() / MIB}
    session.samples.add("daemon", "imagefs", 0, values)


def _second_build(session: _Session) -> None:
    session.link.set_rate(RATES[0])
    session.say("building and starting the second build")
    if session.attempt("rebuild", _rebuild):
        session.attempt("second start", _second_start)


def _rebuild(session: _Session) -> None:
    """Bytes that the upgrade stores anew, against its changed files alone."""
    session.copy("traced", "second")
    report = runtime.build(session.second.name, session.store_folder("second"), _TAG)
    session.samples.add("second_build", "imagefs", 0, _stored(report))
    session.samples.add("second_build", "hot_device", 0, {"stored": report.hot / MB})
    tree = local.unpacked(session.work, session.second)
    new = lz4_of_new(digests(session.tree.bundle / "rootfs"), tree / "rootfs")
    session.samples.add("second_build", "changed_files", 0, {"stored": new / MB})


def _second_start(session: _Session) -> None:
    """Recall and precision of the second build's first start, which has the trace of the first build alone."""
    with host(session.work) as machine, runtime.start(machine, session.url("second")) as start:
        judged = machine.ready()["start"]
        values = {"time": start.seconds, "recall": judged["recall"], "precision": judged["precision"]}
    session.samples.add("second_build", "imagefs:first_start", 0, values)


_PARTS = (_builds, _touched, _recorded, _starts, _warm, _memory, _second_build)


def _tidy(work: Path) -> None:
    """Take away what a benchmark leaves when it is killed, or fails in the wrong place."""
    Host(work / "host").stop()
    runtime.remove_containers()
    remove_mounts(work)
    for name in ("host", "stores", "registry"):
        remove_tree(work / name)
