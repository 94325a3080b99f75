"""`python -m imagefs.build.optimize_snapshot`: gives a snapshot the hot device that its first recorded start asks for.

The imports of a job lie in many places of what was installed, and each of them is a request to the store, on every host
that starts. Copied one after the other in the order of the first touch (`imagefs.build.optimize`) it is one sequential
read. It is done once for a snapshot, by the first host of which the store has a trace, beside the job and below it in
priority; plans alone follow what later starts touch. Where the store has locks the others leave it to the one that
holds that of the snapshot.

On standard input it takes a JSON object: `store` (the fields of `StoreSettings`), `name` (of the snapshot) and
`compression` (the fields of `Compression`). On standard output comes a JSON object: `done`, a line that says what was
done, or why nothing was. An error is one line on standard error and its exit code, and leaves the snapshot as it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys

from imagefs.build.optimize import optimize
from imagefs.repository.images import Images
from imagefs.repository.snapshot_lease import leading
from imagefs.repository.snapshots import Snapshots, check_source
from imagefs.repository.store import open_repository
from imagefs.repository.traces import Traces
from imagefs.settings import AUTO, Compression
from imagefs.trace.references import complete, stored_traces
from stripefs.errors import Busy, StripefsError
from stripefs.settings import store_settings
from stripefs.units import format_size

__all__ = ["SCATTERED", "add_hot_device", "main"]

SCATTERED = 32
"""Places of a plan up to which they are fetched as they lie: four turns of the ranges that are under way at once."""

_PATIENCE = 60.0
"""Seconds in which a store may come back."""

_NICE = 19
"""The job has the processors."""


def main() -> int:
    """The program; its exit code."""
    asked = json.loads(sys.stdin.read())
    os.nice(_NICE)
    try:
        with contextlib.closing(open_repository(store_settings(asked["store"]))) as repository:
            compression = Compression(*asked["compression"])
            told = add_hot_device(Snapshots(Images(repository, _PATIENCE)), asked["name"], compression)
    except StripefsError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(json.dumps({"done": told}) + "\n")
    return 0


def add_hot_device(snapshots: Snapshots, name: str, compression: Compression = AUTO) -> str:
    """Give the snapshot a hot device, if it has none and starts ask for it; what was done, for people.

    Raises NoSuchSnapshot, DamagedObject, FormatError, DraftLost for a lead that was lost meanwhile, and StoreErrors.
    """
    images = snapshots.images
    base = snapshots.load(name).image
    manifest = images.manifest(base)
    check_source(name, manifest)
    if manifest.base:
        return "it has a hot device"
    if (places := _places(Traces(images.repository), base)) <= SCATTERED:
        return f"what starts touch lies in {places} places"
    try:
        with leading(snapshots, name) as lead:
            report = optimize(images, base, complete(stored_traces(images, base)), compression=compression)
            improved = False
            try:
                if lead is not None:
                    lead.check()
                improved = snapshots.add_hot_device(name, base, report.digest)
            finally:
                if not improved:
                    snapshots.retract(name, report.digest)
    except Busy:
        return "another host does it"
    if not improved:
        return "it was removed, or replaced, meanwhile"
    size = format_size(report.stored_bytes)
    return f"{report.extents} extents, {size}, which lay in {places} places, are one hot device now"


def _places(traces: Traces, image: str) -> int:
    """Runs of blocks in the longest plan of the image."""
    plans = (traces.plan(image, workload) for workload in traces.workloads(image))
    return max((len(plan.runs) for plan in plans if plan is not None), default=0)


if __name__ == "__main__":
    sys.exit(main())
