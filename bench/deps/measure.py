"""Measurement of `bench deps`: installs, publishes and mounts, on hosts that are made anew.

Order: wheels, index and link; the installation is published once, and a start with it is recorded; then rounds of all
systems, each beginning one system further on: a host that has nothing, the same host again, and imports from memory; in
the end what several variants take. A system that fails becomes a note, and the others go on.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.deps.node import UV, Job, Node, answered, interpreter, published
from bench.deps.plan import INSTALLER, SYSTEMS, Recipe, derive, recipes, summarize
from bench.deps.wheels import fetch, lay_out, size_of
from bench.harness import Say
from bench.harness.environment import CACHE, cold, disk_read_ahead, remove_mounts, remove_tree, work_folder
from bench.harness.host import Host, await_hot, await_plan, host
from bench.harness.link import Link, linked
from bench.harness.programs import output, run
from bench.harness.results import Document
from bench.harness.rounds import Options as HarnessOptions
from bench.harness.rounds import Rounds, Store, in_turn
from bench.harness.sizes import lz4_of_new, size

__all__ = ["PINS", "RATE", "WORK", "Options", "Taken", "Tally", "measure"]

WORK = CACHE / "bench-deps"
RATE = 50e6  # bytes a second of the link
PINS = Path(__file__).with_name("requirements.txt")

MB = 1e6
_IMPORTS = 5  # from memory, each round


@dataclass(frozen=True, slots=True)
class Options(HarnessOptions):
    work: Path = WORK


@dataclass(slots=True, kw_only=True)
class _Session(Rounds):
    work: Path
    recipe: Recipe
    link: Link
    job: Job

    def node(self) -> Node:
        return Node(self.work / "node", self.job)

    def store_folder(self, name: str) -> Path:
        """A directory store behind the link: `lazy` without a record of a start, `recorded` with one."""
        return self.link.folder / name

    def url(self, name: str) -> str:
        return f"{self.link.url}/{name}"

    @property
    def installed(self) -> Path:
        """The installation that pip makes, with bytecode."""
        return self.work / "installed"

    def timed(self, node: Node, install: Callable[[], object]) -> dict[str, float]:
        """Seconds of `install` and of imports after it, and the bytes over the link until these are done."""
        before, begin = self.link.moved(), time.monotonic()
        install()
        installed = time.monotonic() - begin
        imports = node.imports()
        moved = self.link.moved() - before
        return {"time": installed + imports, "install": installed, "imports": imports, "moved": moved / MB}


def measure(options: Options, say: Say, store: Store) -> Document:
    """The document, which `store` gets anew after each part. Raises BenchError where nothing can be measured."""
    work = options.work
    recipe = recipes(PINS.read_text())["quick" if options.quick else "standard"]
    with work_folder(work, _tidy) as stack:
        fetch([*recipe.everything(), INSTALLER], work / "wheels", say)
        wire = stack.enter_context(linked(work, work / "served"))
        index, python = f"{wire.url}/index/simple/", interpreter(work / "python", work / "wheels")
        job = Job(python, index, work / "requirements.txt", recipe.modules)
        session = _Session.begin(
            "deps", options, {}, summarize, say, store, work=work, recipe=recipe, link=wire, job=job
        )
        lay_out(work / "wheels", recipe.everything(), wire.folder / "index")
        _require(session, recipe.pins)
        measured = str(wire.measure(RATE))
        say(f"the link: {measured}")
        _prepare(session)
        session.document.environment |= {**_facts(session), "link": measured}
        wire.set_rate(RATE)
        for number in range(session.rounds):
            _round(session, number)
            session.keep()
        session.attempt("disk", _disk)
        session.keep()
    return session.document


def _prepare(session: _Session) -> None:
    """Publish the installation, record a start with it, and keep one that pip made. Raises BenchError."""
    session.link.set_rate(0)
    session.say("publishing the installation")
    _publish(session.node(), session.work, session.store_folder("lazy"))
    run("cp", "--archive", "--link", session.store_folder("lazy"), session.store_folder("recorded"))
    session.say("recording a start")
    node = session.node()
    with host(session.work) as here:
        answered(node.imagefs(here, str(session.store_folder("recorded"))))
        node.imports()
        here.ready()
        await_plan(session.store_folder("recorded"))
        if session.recipe.hot:
            await_hot(session.store_folder("recorded"))
    node = session.node()
    node.pip()
    node.target.rename(session.installed)


def _publish(node: Node, work: Path, store: Path, form: str = "pip") -> None:
    """Install and publish. Raises BenchError where nothing is published."""
    with host(work) as here:
        node.imagefs(here, str(store), form=form)
        published(here)


def _round(session: _Session, number: int) -> None:
    session.say(f"round {number + 1} of {session.rounds}")
    for system in in_turn([*SYSTEMS, "warm"], number):
        session.say(system)
        session.attempt(system, _warm if system == "warm" else _system, system, number)
    derive(session.samples, number)


def _system(session: _Session, system: str, number: int) -> None:
    name, _, how = system.partition(":")
    if how.startswith("miss"):
        _miss(session, system, "uv" if how == "miss_uv" else "pip", number)
    elif name == "imagefs":
        _hit(session, system, session.url("lazy" if how == "lazy" else "recorded"), number)
    else:
        _install(session, system, number)


def _install(session: _Session, system: str, number: int) -> None:
    """By an installer that has nothing, and by the same one when its cache is full."""
    node = session.node()
    install = {
        "pip": node.pip,
        "pip:no_bytecode": lambda: node.pip("--no-compile"),
        "uv": node.uv,
        "uv:bytecode": lambda: node.uv("--compile-bytecode"),
    }[system]
    cold()
    session.samples.add("fresh", system, number, session.timed(node, install))
    node.empty()
    session.samples.add("again", system, number, session.timed(node, install))


def _hit(session: _Session, system: str, store: str, number: int) -> None:
    """On a host that has nothing, and there again when the first job has ended."""
    node = session.node()
    told: list[str] = []
    with host(session.work) as here:
        for case in ("fresh", "again"):
            values = session.timed(node, lambda: told.append(node.imagefs(here, store)))
            session.samples.add(case, system, number, values | {"answered": answered(told[-1])})
            here.command("umount", str(node.target))


def _miss(session: _Session, system: str, form: str, number: int) -> None:
    """A first start: the job goes on when it is installed, and what it installed is published beside it."""
    node, store = session.node(), session.work / "missed"
    remove_tree(store)
    with host(session.work) as here:
        begin = time.monotonic()
        values = session.timed(node, lambda: node.imagefs(here, str(store), form=form))
        session.samples.add("fresh", system, number, values | {"published": published(here) - begin})
    remove_tree(store)


def _warm(session: _Session, system: str, number: int) -> None:
    """Imports from memory, from the mount and from what pip installed in turn."""
    node = session.node()
    with host(session.work) as here:
        answered(node.imagefs(here, session.url("recorded")))
        places = {"imagefs": node.target, "installed": session.installed}
        for place in places.values():
            node.imports(place)
        times: dict[str, list[float]] = {name: [] for name in places}
        for _ in range(_IMPORTS):
            for name, place in places.items():
                times[name].append(node.imports(place))
    for name, found in times.items():
        session.samples.add(system, name, number, {"time": statistics.median(found)})


@dataclass(frozen=True, slots=True)
class Taken:
    """Bytes of all variants so far: in the store, of their distinct files as LZ4 makes them, and where installed."""

    stored: int
    unique: int
    installed: int


class Tally:
    """Of the variants in one store."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._known: set[bytes] = set()
        self._unique = 0
        self._installed = 0

    def add(self, installed: Path) -> Taken:
        """One more was published, of what is installed there."""
        self._unique += lz4_of_new(self._known, installed)
        self._installed += size(installed)
        return Taken(size(self._store), self._unique, self._installed)


def _disk(session: _Session) -> None:
    """Sizes of variants that a job installed one after the other: by uv, which is quicker to the same result."""
    session.link.set_rate(0)
    store = session.work / "variants"
    remove_tree(store)
    tally = Tally(store)
    variants = session.recipe.variants()
    for count, pins in enumerate(variants, 1):
        session.say(f"publishing variant {count} of {len(variants)}")
        _require(session, pins)
        node = session.node()
        _publish(node, session.work, store, form="uv")
        taken = tally.add(node.target)
        for case in ["one"] * (count == 1) + ["all"] * (count == len(variants)):
            for name, amount in (("imagefs", taken.stored), ("unique", taken.unique), ("installed", taken.installed)):
                session.samples.add("disk", f"{name}:{case}", 0, {"stored": amount / MB})


def _require(session: _Session, pins: list[str] | tuple[str, ...]) -> None:
    session.job.requirements.write_text("".join(f"{pin}\n" for pin in pins))


def _facts(session: _Session) -> dict[str, Any]:
    """Facts of tools, installation and disk as JSON values."""
    installed = [path for path in session.installed.rglob("*") if path.is_file()]
    return {
        "tools": {"pip": INSTALLER.partition("==")[2], "uv": output(UV, "--version").split()[1]},
        "installation": {
            "name": session.recipe.name,
            "packages": len(session.recipe.pins),
            "wheels_mb": round(size_of(session.work / "wheels", session.recipe.pins) / MB, 1),
            "size_mb": round(size(session.installed) / MB, 1),
            "files": len(installed),
            "modules": list(session.recipe.modules),
        },
        "read_ahead_kib": disk_read_ahead(session.work),
    }


def _tidy(work: Path) -> None:
    """Take away what a benchmark leaves when it is killed, or fails in the wrong place."""
    Host(work / "host").stop()
    remove_mounts(work)
    for name in ("host", "node", "served", "installed", "missed", "variants", "python"):
        remove_tree(work / name)
