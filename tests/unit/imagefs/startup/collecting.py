"""Collecting into any store by the installed command: tests of stores use it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import stripefs
from stripefs.startup_events import ProcessIdentity, Writer
from tests.contract.commands import program
from tests.support.waiting import PATIENCE

__all__ = ["collected_anew", "command", "ended"]


def command(*words: object, **environ: str) -> subprocess.Popen[str]:
    line = [str(program("imagefs")), "startup", "collect", *map(str, words)]
    return subprocess.Popen(line, env=os.environ | environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def collected_anew(folder: Path, url: str) -> None:
    """Two processes of one node, several passes, a spool that loses what was copied, and a second node."""
    spool, other = folder / "spool", folder / "other"
    for number in range(3):
        writer = Writer(str(spool), ProcessIdentity("train", "7", 0, "node-1", number), "job")
        writer.instant("model", "ä" * number)
        assert writer.close(PATIENCE)
        assert ended(command(spool, url)) == (0, "1 events are new, 1 objects were written\n", "")
    for path in spool.glob("*.jsonl"):
        path.unlink()
    writer = Writer(str(spool), ProcessIdentity("train", "7", 0, "node-1"), "imagefs")
    writer.instant("ready")
    assert writer.close(PATIENCE)
    writer = Writer(str(other), ProcessIdentity("train", "7", 0, "node-2"), "job")
    writer.instant("ready")
    assert writer.close(PATIENCE)
    for _ in range(2):
        running = [command("-q", spool, url), command("-q", other, url)]
        assert [ended(process) for process in running] == [(0, "", "")] * 2
    source = stripefs.connect(url)
    found = {entry.name: source.read_bytes(f"train/7/{entry.name}") for entry in source.scandir("train/7")}
    assert sorted(name.partition(".")[0] for name in found) == ["node-1", "node-2"]
    lines = {name.partition(".")[0]: data.splitlines() for name, data in found.items()}
    assert {node: len(set(each)) for node, each in lines.items()} == {"node-1": 4, "node-2": 1}
    assert len(lines["node-1"]) == 4
