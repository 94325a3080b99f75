"""The command `./scripts/soak --publications`. Counters go to standard output as JSON, progress to standard error."""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import time
from collections import Counter

from tests.soak.publications import Context, Violation, model, on_hdfs
from tests.tools.hdfs import hdfs_instance

SIZE = ("--datanodes", "4", "--rate", "0", "--block-size", "1MiB", "--replication", "2")


def main() -> int:
    options = _parser().parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 31)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was begun is undone
    context, counters, begun = Context(seed, options.scale, _say), Counter[str](), time.monotonic()
    try:
        model.play(context, counters)
        with hdfs_instance("publications", *SIZE) as hdfs:
            for how, rounds in on_hdfs.ROUNDS.items():
                for number in range(context.count(rounds)):
                    on_hdfs.play(context, hdfs, how, number, counters)
                    _say(f"{dict(counters)}")
    except Violation as error:
        _say(f"failed with seed {seed}: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    seconds = round(time.monotonic() - begun, 1)
    print(json.dumps({"seed": seed, "scale": options.scale, **counters, "seconds": seconds}, indent=2))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="soak --publications",
        description="Publish files while writers are held up or cut off, and print how often each was tried.",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="repeats an earlier run; else a random one")
    parser.add_argument("--scale", type=float, default=1.0, metavar="X", help="share of the full counts")
    return parser


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
