"""The process that saves and loads: `python -m bench.checkpoint.program`, with torch and the loaders on its path.

A line on standard input is a job, and a line on standard output says what became of it. A job has two steps, so that
page caches can be dropped between them: its line is answered by {"ready": …}, and then the line `go` by the figures.

For a job as many processes are forked from this one as it has ranks, which have all libraries imported and nothing
else: no files, no connections, no threads. Their preparation (tensors to save, a connection) is not measured.

    {"act": "save", "format": "torch:fsspec", "size": …, "path": …, "root": …, "options": {…}, "ranks": 1}

act is save, load or share (`bench.checkpoint.ranks`). The figures are {"bytes", "seconds", "cpu"}: of a save or load as
a whole, the longest of all ranks; CPU time of all of them, without that of checking. A failure is {"error"}.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

import torch

from bench.checkpoint.formats import LOADERS, SAVERS, Tensors
from bench.checkpoint.ranks import RANKS
from bench.checkpoint.state import Place, Seen, State
from stripefs.api import engine

__all__ = ["main"]

Work = Callable[[], Callable[[], int]]
"""The measured part of a job; it answers the check of its result, and that the bytes."""


def prepared(job: dict[str, Any], rank: int) -> Work:
    """Prepare `job` for one rank."""
    state = State(job["size"])
    place = Place(job["path"], job["root"], job["options"])
    place.connect()
    act, name, ranks = job["act"], job["format"], job["ranks"]
    if act == "share":
        return lambda: _already(RANKS[name](place, state, rank, ranks))
    if act == "load":
        return lambda: _check_later(LOADERS[name](place, state), state)
    tensors = {tensor: torch.from_numpy(rows) for tensor, rows in state.make().items()}
    return lambda: _already(_saved(tensors, place, state, name))


def _saved(tensors: Tensors, place: Place, state: State, name: str) -> int:
    SAVERS[name](tensors, place, state)
    if not place.root and not name.startswith("dcp"):  # which does it itself
        descriptor = os.open(place.path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    return state.length


def _already(count: int) -> Callable[[], int]:
    return lambda: count


def _check_later(tensors: Tensors, state: State) -> Callable[[], int]:
    def check() -> int:
        seen = Seen(state)
        seen.check_all({name: tensor.numpy() for name, tensor in tensors.items()})
        return seen.done()

    return check if tensors else _already(state.length)


@dataclass(slots=True)
class _Rank:
    """A forked process, and the pipes to and from it."""

    pid: int
    orders: IO[bytes]
    answers: IO[bytes]

    @classmethod
    def fork(cls, job: dict[str, Any], rank: int) -> _Rank:
        orders, answers = os.pipe(), os.pipe()
        pid = os.fork()
        if not pid:
            _child(job, rank, os.fdopen(orders[0], "rb"), os.fdopen(answers[1], "wb"), (orders[1], answers[0]))
        os.close(orders[0])
        os.close(answers[1])
        return cls(pid, os.fdopen(orders[1], "wb"), os.fdopen(answers[0], "rb"))

    def answer(self) -> dict[str, Any]:
        """The next line from it."""
        line = self.answers.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "a loading process died"}
        return answer

    def go(self) -> None:
        self.orders.write(b"go\n")
        self.orders.flush()

    def dismiss(self) -> None:
        """Without orders one that waits for them ends. Dismiss all before waiting for any: a later one was forked with
        the earlier ones' pipes open."""
        self.orders.close()
        self.answers.close()


def _child(job: dict[str, Any], rank: int, orders: IO[bytes], answers: IO[bytes], foreign: tuple[int, int]) -> None:
    """Never returns."""
    for descriptor in foreign:
        os.close(descriptor)
    try:
        work = prepared(job, rank)
        _tell(answers, {"ready": rank})
        if orders.readline():
            _tell(answers, _measured(work))
        engine.stop()
    except BaseException as error:  # noqa: BLE001  the border: whatever it is, the other side is told
        _tell(answers, {"error": f"{type(error).__name__}: {error}".splitlines()[0]})
    finally:
        os._exit(0)


def _measured(work: Work) -> dict[str, float]:
    cpu, begin = _cpu(), time.monotonic()
    check = work()
    seconds, used = time.monotonic() - begin, _cpu() - cpu
    return {"bytes": check(), "seconds": seconds, "cpu": used}


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _tell(where: IO[bytes], answer: dict[str, Any]) -> None:
    where.write(json.dumps(answer).encode() + b"\n")
    where.flush()


def _together(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """The answers of all ranks as one."""
    failed = [answer for answer in answers if "error" in answer]
    if failed:
        return failed[0]
    if "ready" in answers[0]:
        return {"ready": len(answers)}
    return {
        "bytes": sum(answer["bytes"] for answer in answers),
        "seconds": max(answer["seconds"] for answer in answers),
        "cpu": sum(answer["cpu"] for answer in answers),
    }


def main() -> None:
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process alone saves and loads
    out = sys.stdout.buffer
    _tell(out, {"ready": 0})
    for line in sys.stdin:
        job = json.loads(line)
        ranks = [_Rank.fork(job, number) for number in range(job["ranks"])]
        figures = None
        try:
            answer = _together([rank.answer() for rank in ranks])
            _tell(out, answer)
            if "error" not in answer and sys.stdin.readline():
                for rank in ranks:
                    rank.go()
                figures = _together([rank.answer() for rank in ranks])
        finally:
            for rank in ranks:
                rank.dismiss()
            for rank in ranks:
                os.waitpid(rank.pid, 0)
        if figures is not None:  # told when nothing of the job runs any more: its cache may be removed then
            _tell(out, figures)


if __name__ == "__main__":
    main()
