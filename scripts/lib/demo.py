"""The demonstration behind ./scripts/demo: stripefs reading (`demo_files`) and writing (`demo_saves`), and imagefs with
an image (`demo_images`) and with what a job installs (`demo_deps`), each before and after.

Prints what it does and what came out; leaves nothing behind, also when interrupted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import nullcontext

import demo_deps
import demo_files
import demo_images
import demo_saves
from demo_tools import INTERRUPTS, Failed, temporary_folder

from bench import cluster
from stripefs.errors import StripefsError


def main(arguments: list[str]) -> int:
    for number in INTERRUPTS:
        signal.signal(number, signal.default_int_handler)
    os.environ["HADOOP_USER_NAME"] = "root"
    try:
        with demo_files.real_cluster() if "--hdfs" in arguments else nullcontext() as hdfs:
            with temporary_folder() as folder:
                demo_files.demonstrate(demo_files.on_cluster(hdfs) if hdfs else demo_files.simulated(folder), folder)
            print(flush=True)
            with temporary_folder() as folder:
                demo_saves.demonstrate(demo_saves.on_cluster(hdfs) if hdfs else demo_saves.simulated(folder), folder)
            print(flush=True)
            with temporary_folder() as folder:
                demo_images.demonstrate(demo_images.on_cluster(hdfs) if hdfs else demo_images.simulated(folder), folder)
            print(flush=True)
            with temporary_folder() as folder:
                demo_deps.demonstrate(demo_images.on_cluster(hdfs) if hdfs else demo_images.simulated(folder), folder)
    except KeyboardInterrupt:
        return 130
    except subprocess.CalledProcessError as error:
        print(f"demo: error: {' '.join(map(str, error.cmd[:2]))} failed", file=sys.stderr)
        return 1
    except (Failed, cluster.BenchError, StripefsError, OSError) as error:
        print(f"demo: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
