"""`bench ceiling`: its stacks from samples, and every case on every system that can be mounted here."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from bench.ceiling import measure
from bench.ceiling.flames import folded
from bench.ceiling.plan import CASES, SYSTEMS, measured
from bench.harness import peers
from bench.harness.results import Document

MIB = 1 << 20
SAMPLES = """\
stripefs  4242 cpu-clock:ppp:
	ffffffff81 copy_page_to_iter ([kernel.kallsyms])
	7f00000010 PyEval_Eval+0x1c (/usr/lib/libpython3.11.so)
	7f00000020 [unknown] (/usr/lib/trio.so)

stripefs  4243 cpu-clock:ppp:
	ffffffff82 copy_page_to_iter+0x10 ([kernel.kallsyms])
	7f00000014 PyEval_Eval+0x20 (/usr/lib/libpython3.11.so)
	7f00000020 [unknown] (/usr/lib/trio.so)

stripefs  4243 cpu-clock:ppp:
	7f00000030 fuse reply;data (/usr/lib/libfuse3.so.3)
"""


def test_equal_stacks_are_counted_from_the_outermost_frame_in() -> None:
    assert folded(SAMPLES.splitlines()) == {
        "stripefs;[trio.so];PyEval_Eval;copy_page_to_iter": 2,
        "stripefs;fuse_reply:data": 1,
    }


@pytest.mark.root
@pytest.mark.mount
def test_every_case_is_measured_on_every_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measure, "QUICK_SIZE", 16 * MIB)
    monkeypatch.setattr(peers, "try_rclone", lambda _notes, _say: peers.find_rclone())
    kept: list[Document] = []
    options = measure.Options(quick=True, rounds=1, work=tmp_path, profile=tmp_path / "stacks")
    document = measure.measure(options, lambda _line: None, lambda one: kept.append(dataclasses.replace(one)))
    assert document.notes == []
    systems = [name for name in SYSTEMS if name != "rclone" or peers.find_rclone()]
    for case in CASES:
        for name in systems:
            row = document.row(case, name, "throughput")
            assert (row is None) == (not measured(case, name)), (case, name)
            assert row is None or row.median > 0
    assert kept
    stacks = (tmp_path / "stacks").read_text().splitlines()
    assert stacks
    assert all(re.fullmatch(r"python\S*;\S+ [1-9]\d*", line) for line in stacks)
    assert not (tmp_path / "memory").exists()
