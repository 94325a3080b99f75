"""The demonstration behind ./scripts/demo: stripefs reading (`demo_files`) and writing (`demo_saves`), imagefs with an
image (`demo_images`) and with what a job installs (`demo_deps`), and a whole job (`demo_job`), each before and after.

Prints what it does and what came out; leaves nothing behind, also when interrupted.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from contextlib import nullcontext

import demo_deps
import demo_files
import demo_images
import demo_job
import demo_saves
from demo_tools import INTERRUPTS, Failed, say, temporary_folder

from bench.harness import BenchError, cluster
from stripefs.errors import StripefsError

PARTS = ("read", "save", "image", "deps", "job")


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./scripts/demo", description="Show every part before and after, or some.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}; all by default")
    parser.add_argument("--hdfs", action="store_true", help="on a real HDFS instead of simulated hosts")
    parser.add_argument("--html", metavar="FILE", help="write the report on the whole job as a page, too")
    asked = parser.parse_args(words)
    if unknown := {*asked.parts} - {*PARTS}:
        parser.error(f"there is no part {min(unknown)}: name some of {', '.join(PARTS)}")
    for number in INTERRUPTS:
        signal.signal(number, signal.default_int_handler)
    os.environ["HADOOP_USER_NAME"] = "root"
    try:
        with demo_files.real_cluster() if asked.hdfs else nullcontext() as hdfs:
            show(asked.parts or PARTS, hdfs, os.path.abspath(asked.html) if asked.html else "")
    except KeyboardInterrupt:
        return 130
    except subprocess.CalledProcessError as error:
        print(f"demo: error: {' '.join(map(str, error.cmd[:2]))} failed", file=sys.stderr)
        return 1
    except (Failed, BenchError, StripefsError, OSError) as error:
        print(f"demo: error: {error}", file=sys.stderr)
        return 1
    return 0


def show(parts: list[str] | tuple[str, ...], hdfs: cluster.Cluster | None, page: str) -> None:
    """These parts. hdfs: None for simulated hosts. page: an HTML file for the report on the job, or ""."""
    if "read" in parts:
        with temporary_folder() as folder:
            demo_files.demonstrate(demo_files.on_cluster(hdfs) if hdfs else demo_files.simulated(folder), folder)
        print(flush=True)
    if "save" in parts:
        with temporary_folder() as folder:
            demo_saves.demonstrate(demo_saves.on_cluster(hdfs) if hdfs else demo_saves.simulated(folder), folder)
        print(flush=True)
    if not {"image", "deps", "job"} & {*parts}:
        return
    with temporary_folder() as folder:
        place = demo_images.on_cluster(hdfs) if hdfs else demo_images.simulated(folder)
        if "image" in parts:
            demo_images.demonstrate(place, folder)
            print(flush=True)
        if "deps" in parts:
            demo_deps.demonstrate(place, folder)
            print(flush=True)
        if "job" in parts and (why := demo_job.lacking()):
            say("job", why)
        elif "job" in parts:
            checkpoint = demo_job.on_cluster(hdfs) if hdfs else demo_job.simulated(folder)
            demo_job.demonstrate(place, checkpoint, folder, page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
