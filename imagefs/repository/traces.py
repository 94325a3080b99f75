"""Traces and plans in a store, or in a local folder where the store cannot be written (docs/format.md, Store).

The name of a trace is when the start began, in milliseconds since 1970, and the beginning of the document's digest: so
names sort by time, whoever stores a trace twice stores it once, and damage is noticed. A trace never changes. A plan is
replaced as a whole by whoever learned more.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import zstandard

from imagefs.errors import DamagedObject, FormatError
from imagefs.format import is_digest
from imagefs.format.trace import DEFAULT_WORKLOAD, SIZE_LIMIT, Plan, Trace, check_workload
from imagefs.repository.base import Repository
from imagefs.repository.images import Images
from imagefs.repository.store import StoreRepository
from stripefs.errors import Exists, NotFound, StoreError
from stripefs.store.local import LocalStore

__all__ = ["KEEP", "OTHERS", "Traces", "load_plan", "local_traces", "other_plans", "unpack"]

KEEP = 16
"""Traces of one image and workload that are merged and kept, the newest: enough for a vote, and few enough to read."""

OTHERS = 4
"""Plans of other workloads that a start without one goes by at most: each is a request."""

_NAME = re.compile(r"[0-9]{15}-[0-9a-f]{16}")
_LEVEL = 3  # a trace of 1.1 MiB becomes 0.3; LZ4 leaves 0.5

_log = logging.getLogger(__name__)


class Traces:
    """The traces in `repository`. Calls raise StoreErrors; listing raises Unsupported where a store cannot."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository

    # -- traces --------------------------------------------------------------------------------------------------

    def put(self, trace: Trace) -> str:
        """Store a trace; its name. Raises FormatError for one that no program would read."""
        document = trace.to_json()
        name = f"{int(trace.started * 1000):015}-{hashlib.sha256(document).hexdigest()[:16]}"
        with contextlib.suppress(Exists):  # the same bytes: its name says so
            path = _trace_path(trace.image, trace.workload, name)
            self.repository.put(path, zstandard.compress(document, level=_LEVEL))
        return name

    def bases(self) -> list[str]:
        """The images that have traces: digests of manifests without a hot device."""
        return [name for name in self._names("/traces") if is_digest(name)]

    def workloads(self, base: str) -> list[str]:
        """The workloads of which the image has traces."""
        return self._names(f"/traces/{_digest(base)}")

    def names(self, base: str, workload: str) -> list[str]:
        """The traces of an image and workload, the oldest first."""
        folder = f"/traces/{_digest(base)}/{check_workload(workload)}"
        return sorted(name for name in self._names(folder) if _NAME.fullmatch(name))

    def load(self, base: str, workload: str, name: str) -> Trace:
        """Raises NotFound, DamagedObject for other bytes than the name says, FormatError."""
        path = _trace_path(base, workload, name)
        packed = bytes(self.repository.read(path, SIZE_LIMIT))
        try:
            document = unpack(packed)
        except zstandard.ZstdError as error:
            raise DamagedObject(f"the trace {name} in {self.repository.url} cannot be unpacked: {error}") from error
        if hashlib.sha256(document).hexdigest()[:16] != name.rpartition("-")[2]:
            raise DamagedObject(f"the trace {name} in {self.repository.url} holds other bytes than its name says")
        trace = Trace.from_json(document)
        if (trace.image, trace.workload) != (base, workload):
            raise FormatError(f"the trace {name} in {self.repository.url} is of another image or workload")
        return trace

    def newest(self, base: str, workload: str, count: int = KEEP) -> list[Trace]:
        """The newest traces, the newest last; what is damaged is left out, and logged."""
        found = []
        for name in reversed(self.names(base, workload)):
            try:
                found.append(self.load(base, workload, name))
            except (DamagedObject, FormatError, NotFound) as error:
                _log.warning("a trace is left out: %s", error)
            if len(found) == count:
                break
        return found[::-1]

    def remove(self, base: str, workload: str, name: str) -> None:
        """Raises NotFound."""
        self.repository.remove(_trace_path(base, workload, name))

    def prune(self, base: str, workload: str, count: int = KEEP) -> int:
        """Remove all but the newest `count` traces; how many went."""
        old = self.names(base, workload)[:-count]
        for name in old:
            with contextlib.suppress(NotFound):  # another host prunes too
                self.remove(base, workload, name)
        return len(old)

    # -- plans ---------------------------------------------------------------------------------------------------

    def put_plan(self, plan: Plan) -> None:
        """Store a plan in place of what was there."""
        self.repository.put(_plan_path(plan.image, plan.workload), plan.to_json(), replace=True)

    def plans(self) -> list[tuple[str, str]]:
        """Image and workload of all plans."""
        images = [name for name in self._names("/plans") if is_digest(name)]
        return [(image, workload) for image in images for workload in self.planned(image)]

    def planned(self, image: str) -> list[str]:
        """The workloads that have a plan for this image."""
        return self._names(f"/plans/{_digest(image)}")

    def plan(self, image: str, workload: str) -> Plan | None:
        """The plan for an image and workload, None where there is none. Raises FormatError."""
        try:
            plan = Plan.from_json(bytes(self.repository.read(_plan_path(image, workload), SIZE_LIMIT)))
        except NotFound:
            return None
        if (plan.image, plan.workload) != (image, workload):
            raise FormatError(f"the plan for {workload} in {self.repository.url} is of another image or workload")
        return plan

    def _names(self, folder: str) -> list[str]:
        try:
            found = [status.name for status in self.repository.entries(folder.encode())]
        except NotFound:
            return []  # nothing was stored yet
        # An unfinished object has a name that begins with a dot in some stores; no object of ours does.
        return [name.decode("utf-8", "replace") for name in found if not name.startswith(b".")]


@contextlib.contextmanager
def local_traces(folder: Path) -> Iterator[Traces]:
    """The traces in a local folder, which is made where it is missing. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    repository = StoreRepository(LocalStore(os.fsencode(folder.absolute())))
    try:
        yield Traces(repository)
    finally:
        repository.close()


def load_plan(images: Images, image: str, workload: str, folder: Path | None = None) -> Plan | None:
    """The plan for a mount of `image`: the one in the store or the one in the local `folder`, whichever knows more.

    Raises StoreErrors and FormatError only where there is no other plan to go by.
    """
    here = None
    if folder is not None and folder.is_dir():
        with local_traces(folder) as traces:
            try:
                here = traces.plan(image, workload)
            except (FormatError, StoreError) as error:
                _log.warning("a local plan is left out: %s", error)
    try:
        there = Traces(images.repository).plan(image, workload)
    except (FormatError, StoreError) as error:
        if here is None:
            raise
        _log.warning("the local plan is taken: %s", error)
        return here
    return max((plan for plan in (there, here) if plan is not None), key=lambda plan: plan.traces, default=None)


def other_plans(images: Images, image: str, workload: str, folder: Path) -> list[Plan]:
    """At most `OTHERS` plans for other workloads of `image`, those that most starts taught first: of all in the local
    `folder`, and of `OTHERS` that the store is asked for, the default workload's and those first by name. One that
    cannot be had is left out. A store that does not list is asked for the default workload's."""
    found = {plan.workload: plan for plan in _others(Traces(images.repository), image, workload, OTHERS)}
    if folder.is_dir():
        with local_traces(folder) as traces:
            for plan in _others(traces, image, workload):
                if plan.workload not in found or plan.traces > found[plan.workload].traces:
                    found[plan.workload] = plan
    return sorted(found.values(), key=lambda plan: (-plan.traces, plan.workload))[:OTHERS]


def _others(traces: Traces, image: str, workload: str, most: int | None = None) -> Iterator[Plan]:
    try:
        names = traces.planned(image)
    except StoreError:
        names = [DEFAULT_WORKLOAD]
    others = sorted({*names} - {workload}, key=lambda name: (name != DEFAULT_WORKLOAD, name))
    for name in others[:most]:
        try:
            plan = traces.plan(image, name)
        except (FormatError, StoreError) as error:
            _log.info("a plan for another workload is left out: %s", error)
        else:
            if plan is not None:
                yield plan


def _trace_path(base: str, workload: str, name: str) -> bytes:
    if not _NAME.fullmatch(name):
        raise NotFound(f"{name!r} is no name of a trace")
    return f"/traces/{_digest(base)}/{check_workload(workload)}/{name}".encode()


def _plan_path(image: str, workload: str) -> bytes:
    return f"/plans/{_digest(image)}/{check_workload(workload)}".encode()


def _digest(text: str) -> str:
    if not is_digest(text):
        raise NotFound(f"{text!r} is no digest of an image")
    return text


def unpack(packed: bytes) -> bytes:
    """The document, at most a byte more than a trace may have, whatever a bomb would unpack to. Raises ZstdError."""
    document = bytearray()
    with zstandard.ZstdDecompressor(max_window_size=1 << 23).stream_reader(packed) as reader:
        while len(document) <= SIZE_LIMIT and (piece := reader.read(1 << 20)):
            document += piece
    return bytes(document)
