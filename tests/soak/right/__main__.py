"""The command `./scripts/soak --right`. Counters go to standard output as JSON, progress to standard error."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import json
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.soak.right import Context, Violation
from tests.tools.hdfs import HdfsInstance, hdfs_instance

CHECKS: tuple[str, ...] = ("exclusive", "damage", "dependency_keys", "publication")
"""Modules of this package, in the order in which they run."""


def main() -> int:
    options = _parser().parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 31)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was begun is undone
    summary: dict[str, Any] = {"seed": seed, "scale": options.scale}
    with contextlib.ExitStack() as stack:

        @functools.cache
        def hdfs() -> HdfsInstance:
            options = ("--datanodes", "4", "--rate", "0", "--block-size", "1MiB", "--replication", "2")
            return stack.enter_context(hdfs_instance("right", *options))

        for name in options.check or CHECKS:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"soak-{name}-")))
            check = importlib.import_module(f"tests.soak.right.{name}").check
            began = time.monotonic()
            try:
                counters = check(Context(seed, options.scale, folder, _say, hdfs))
            except Violation as error:
                _say(f"{name} failed with seed {seed}: {error}")
                return 1
            except KeyboardInterrupt:
                return 130
            summary[name] = {**counters, "seconds": round(time.monotonic() - began, 1)}
            _say(f"{name}: {summary[name]}")
    print(json.dumps(summary, indent=2))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="soak --right",
        description="Check promises under races, partitions and damage, and print how often each was tried.",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="repeats an earlier run; else a random one")
    parser.add_argument("--scale", type=float, default=1.0, metavar="X", help="share of the full counts")
    parser.add_argument("--check", action="append", choices=CHECKS, help="this one alone; may be given again")
    return parser


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
