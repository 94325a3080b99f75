"""The soak: checked readers on a mount of a real HDFS while its worker and DataNodes die.

A wrong byte, a failed or lost read, a reader that does not get on, a worker that died without being killed or an
unexpected line in the mount's log ends it with SoakFailed. At most one DataNode is away at a time (contents have two
replicas), and it is registered again before the next one suffers.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.soak.crowd import Crowd
from tests.support.checked_content import content
from tests.tools.command import REPLACED, Live, Place, eventually
from tests.tools.hdfs import HdfsInstance
from tests.tools.webhdfs import HdfsPopulate, WebHdfs

__all__ = ["Contents", "Kill", "SoakFailed", "make_plan", "soak"]

MIB = 1 << 20

_WORKER, _PAUSE = 0.7, 0.15  # the rest: a DataNode is killed
_EARLY = 0.15


@dataclass(frozen=True, slots=True)
class Kill:
    """One fault. Times in seconds.

    kind: worker (SIGKILL), kill (SIGKILL of DataNode `node`, restarted `down` later) or pause (SIGSTOP of it, SIGCONT
    `down` later). It comes `wait` after the one before. An `early` kill of a worker comes as soon as there is one;
    others wait until the worker has answered, since three deaths without an answer end a mount, as is documented.
    """

    kind: str
    wait: float
    node: str = ""
    down: float = 0.0
    early: bool = False


class SoakFailed(Exception):
    """The mount did something that it must not do."""


def make_plan(seed: int, kills: int, nodes: Sequence[str], pause_between: float) -> list[Kill]:
    """`kills` faults on average `pause_between` seconds apart; never two early ones of a worker in a row. The order
    follows from the seed alone, so that a run can be repeated."""
    rng = random.Random(seed)
    plan: list[Kill] = []
    early = False
    for _ in range(kills):
        wait = rng.uniform(0, 2 * pause_between)
        chance, node, down = rng.random(), rng.choice(nodes), rng.uniform(0, 8)
        if chance < _WORKER:
            early = not early and rng.random() < _EARLY
            plan.append(Kill("worker", wait, early=early))
        else:
            plan.append(Kill("pause" if chance < _WORKER + _PAUSE else "kill", wait, node, down))
    return plan


@dataclass(frozen=True, slots=True)
class Contents:
    """`files` files below `root`, of sizes around `size` bytes that end neither on a page nor on a block."""

    root: str = "/soak"
    files: int = 6
    size: int = 24 * MIB
    block_size: int = 2 * MIB

    def write(self, instance: HdfsInstance) -> None:
        populate = self._populate(instance)
        for number in range(self.files):
            name = f"file{number}"
            populate.write(f"/{name}".encode(), content(name, 0, self.size + number * 1234567 % MIB))

    def delete(self, instance: HdfsInstance) -> None:
        self._populate(instance).delete(b"")

    def _populate(self, instance: HdfsInstance) -> HdfsPopulate:
        return HdfsPopulate(WebHdfs(instance.web), self.root, block_size=self.block_size, replication=2)


@dataclass(slots=True)
class _Faults:
    """Inflicts kills on a mount and an instance, and heals what they leave."""

    live: Live
    instance: HdfsInstance
    killed: dict[str, int] = field(default_factory=lambda: {"worker": 0, "kill": 0, "pause": 0})
    _healer: threading.Thread | None = None
    _complaint: list[BaseException] = field(default_factory=list)

    def inflict(self, kill: Kill) -> str:
        """Do it; what was done, in words."""
        self.killed[kill.kind] += 1
        if kill.kind == "worker":
            if not kill.early:
                answered = self._answered()
                eventually(lambda: self._answered() > answered, "an answered request")
            return f"worker {self.live.kill_worker()} killed{' early' if kill.early else ''}"
        self.heal()
        (self.instance.kill if kill.kind == "kill" else self.instance.pause)(kill.node)
        self._healer = threading.Thread(target=self._bring_back, args=(kill,), name=f"heal {kill.node}")
        self._healer.start()
        return f"{kill.node} {'killed' if kill.kind == 'kill' else 'paused'} for {kill.down:.1f} s"

    def heal(self) -> None:
        """Wait until the DataNode that is away serves again. Raises what kept it from that."""
        if self._healer is not None:
            self._healer.join()
            self._healer = None
        if self._complaint:
            raise self._complaint[0]

    def _bring_back(self, kill: Kill) -> None:
        try:
            time.sleep(kill.down)
            (self.instance.restart if kill.kind == "kill" else self.instance.resume)(kill.node)
            self.instance.wait()
        except AssertionError as error:
            self._complaint.append(error)

    def _answered(self) -> int:
        return int(self.live.status()["requests"]["answered"])


def soak(
    place: Place,
    instance: HdfsInstance,
    contents: Contents,
    plan: list[Kill],
    *,
    seed: int,
    readers: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Inflict `plan` under `readers` checked readers of `contents`, which is there; a summary in JSON's terms.

    Raises SoakFailed, or ReaderFailed for what a reader saw.
    """
    place.forgive(REPLACED)
    begun = time.monotonic()
    live = place.mount(f"{instance.url}{contents.root}", "--memory", "64MiB")
    faults = _Faults(live, instance)
    with Crowd(live.path, readers, seed=seed) as crowd, contextlib.ExitStack() as ending:
        ending.callback(faults.heal)  # so that no healer is left
        crowd.get_on()
        for number, kill in enumerate(plan, 1):
            time.sleep(kill.wait)
            what = faults.inflict(kill)
            crowd.check()
            say(f"{number:4d} {time.monotonic() - begun:6.0f} s  {what}; {crowd.total.bytes / 1e9:.2f} GB read right")
            if number % 10 == 0:
                crowd.get_on()
        faults.heal()
        crowd.get_on()
        restarts = live.status()["restarts"]
        total = crowd.finish()
    live.umount()
    complaints = place.complaints()
    if restarts != faults.killed["worker"]:
        raise SoakFailed(f"{restarts} workers were replaced where {faults.killed['worker']} were killed")
    if complaints:
        raise SoakFailed("unexpected in the mount's log:\n" + "\n".join(complaints))
    return {
        "seed": seed,
        "kills": {"worker": faults.killed["worker"], "datanode": faults.killed["kill"]},
        "pauses": faults.killed["pause"],
        "readers": readers,
        "reads": total.reads,
        "bytes": total.bytes,
        "wrong_bytes": 0,
        "failed_reads": 0,
        "seconds": round(time.monotonic() - begun),
    }
