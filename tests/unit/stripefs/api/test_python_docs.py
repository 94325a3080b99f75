"""The examples of docs/python.md, from its first to its last, on a local source in place of a cluster.

Those for PyTorch are only compiled here; tests/loaders, where torch is, runs them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import stripefs
from stripefs.fsspec import LocalFileSystem
from tests.support.checkout import CHECKOUT
from tests.support.python_api import MIB, content

PAGE = CHECKOUT / "docs" / "python.md"
SOURCE = "hdfs://namenode:8020/checkpoints"

EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def needs_torch(example: str) -> bool:
    return re.search(r"^import torch\b", example, re.MULTILINE) is not None


def here(example: str, place: Path) -> str:
    """The example with a local directory where it names the cluster."""
    for there, local in (
        (f"stripefs+{SOURCE}", f"stripefs+file://{place}"),
        (SOURCE, f"file://{place}"),
        (SOURCE.removeprefix("hdfs://"), str(place)),
        ("HdfsFileSystem", LocalFileSystem.__name__),
    ):
        example = example.replace(there, local)
    assert "namenode" not in example
    return example


def test_examples_run_in_their_order(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(EXAMPLES) >= 9
    (place / "model.bin").write_bytes(content(16 * MIB))
    for example in EXAMPLES:
        program = compile(here(example, place), str(PAGE), "exec")
        if not needs_torch(example):
            exec(program, {})
    assert stripefs.connect(str(place)).stat("step-latest/model.bin").size == 20_000_000
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("model.bin file 16777216 ")
    assert shown[-1] == "1000"
