"""The command `./scripts/soak`. The summary goes to standard output, a line for each kill to standard error."""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.soak.crowd import ReaderFailed
from tests.soak.engine import Contents, SoakFailed, make_plan, soak
from tests.soak.writing import WriterFailed, make_deaths, soak_writers
from tests.tools.command import Place
from tests.tools.hdfs import HdfsInstance, hdfs_instance
from tests.tools.webhdfs import HdfsPopulate, WebHdfs


def main() -> int:
    options = _parser().parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 31)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was begun is undone
    _say(f"seed {seed}")
    size = ("--datanodes", str(options.datanodes), "--rate", str(options.rate), "--block-size", "2MiB")
    complaints: list[str] = []
    try:
        with (
            tempfile.TemporaryDirectory(prefix="soak-") as folder,
            hdfs_instance("soak", *size, "--replication", "2") as instance,
        ):
            contents = Contents()
            contents.write(instance)
            place = Place(Path(folder))
            nodes = [node["node"] for node in instance.datanodes]
            plan = make_plan(seed, options.kills, nodes, 60 * options.minutes / max(1, options.kills))
            try:
                summary = soak(place, instance, contents, plan, seed=seed, readers=options.readers, say=_say)
                contents.delete(instance)
                summary["writing"] = _write(place, instance, options, seed)
            except BaseException:
                _say(_last_words(place))
                raise
            finally:
                complaints = place.close()
    except (ReaderFailed, SoakFailed, WriterFailed, AssertionError) as error:
        _say(f"failed with seed {seed}: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    if complaints:
        _say(f"failed with seed {seed}: {'; '.join(complaints)}")
        return 1
    print(json.dumps(summary, indent=2))
    return 0


def _write(place: Place, instance: HdfsInstance, options: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """The deaths of writers, half in each layout, on a directory of its own; a summary of each."""
    summaries = []
    for number, layout in enumerate(("concat", "striped")):
        count = (options.deaths + number) // 2
        HdfsPopulate(WebHdfs(instance.web), f"/written-{layout}")  # makes the directory
        deaths = make_deaths(seed + number, count, count)
        source = f"{instance.url}/written-{layout}"
        more = ("--layout", layout, "--unit", "1MiB", "--write-memory", "64MiB")
        summaries.append({"layout": layout} | soak_writers(place, source, deaths, seed=seed, say=_say, options=more))
    return summaries


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="soak",
        description="Kill workers and DataNodes at random under readers that check every byte, on an HDFS of its own; "
        "then writers and workers at random points of what they write.",
    )
    parser.add_argument("--kills", type=int, default=200, metavar="N")
    parser.add_argument("--deaths", type=int, default=50, metavar="N", help="of writers, and as many of workers")
    parser.add_argument("--seed", type=int, metavar="N", help="repeats the order of an earlier run; else a random one")
    parser.add_argument("--minutes", type=float, default=20, metavar="M", help="over which the kills are spread")
    parser.add_argument("--readers", type=int, default=8, metavar="N")
    parser.add_argument("--datanodes", type=int, default=4, metavar="N")
    parser.add_argument("--rate", type=float, default=20, metavar="MB/s", help="of each DataNode; 0: no cap")
    return parser


def _last_words(place: Place) -> str:
    """The end of the mounts' logs, for who looks for the cause."""
    return "\n".join(line for log in sorted(place.folder.glob("log*")) for line in log.read_text().splitlines()[-40:])


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
