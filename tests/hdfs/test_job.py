"""A job with a checkpoint in a real HDFS: warmed while its image starts, read from local disk, written back."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

import pytest

import stripefs
from stripefs.fuse import kernel
from tests.hdfs.conftest import populated
from tests.support.stores import content
from tests.tools.containers import fill
from tests.tools.hdfs import HdfsInstance
from tests.tools.imagefs_daemon import Service, built, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.mount, pytest.mark.root]

MIB = 1 << 20

CONFIG = {"config": {"Env": ["PATH=/bin"]}}


def test_a_job_resumes_from_a_warmed_checkpoint_and_writes_the_next(hdfs: HdfsInstance, tmp_path: Path) -> None:
    data = {step: content(12 * MIB, step) for step in (1, 2)}
    fill(tmp_path / "root")
    built(tmp_path / "root", tmp_path / "store", "small", CONFIG)
    events = tmp_path / "events"
    script = (
        "ls /ckpt; read line; busybox md5sum /ckpt/step_2/model; mkdir /ckpt/step_3;"
        "cat /ckpt/step_2/model > /ckpt/step_3/model"
    )
    command = [
        "run",
        "--events",
        str(events),
        "--checkpoint-warm",
        "latest",
        "--checkpoint",
        f"{hdfs.url}/job:/ckpt:rw",
    ]
    with populated(hdfs, "/job", block_size=MIB) as populate:
        for step, one in data.items():
            populate.write(f"/step_{step}/model".encode(), one)
        with contextlib.closing(Service(tmp_path / "host", background_rate="0")) as host:
            process = host.start(*command, f"{tmp_path / 'store'}#small", "--", "sh", "-c", script, stdin=-1)

            def warmed() -> list[int]:
                lines = [line for path in events.glob("*.jsonl") for line in path.read_text().splitlines()]
                return [one["facts"]["store_bytes"] for one in map(json.loads, lines) if one.get("name") == "warmed"]

            assert eventually(warmed, "the end of the warming") == [12 * MIB]
            sent = sum(hdfs.bytes_sent().values())
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("go on\n")
            process.stdin.flush()
            said = [process.stdout.readline().split()[0] for _ in range(3)]
            assert said == ["step_1", "step_2", hashlib.md5(data[2]).hexdigest()]
            assert sum(hdfs.bytes_sent().values()) - sent < 4 * MIB
            out, err = process.communicate(timeout=60)
            assert (process.returncode, out, err) == (0, "", "")
            left = [one.path for one in kernel.mounts() if Path(one.path).is_relative_to(host.folder)]
            assert left == [host.settings.devices]
        with stripefs.open(f"{hdfs.url}/job/step_3/model") as file:
            assert bytes(file.read()) == data[2]
