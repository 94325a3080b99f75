"""The content of the benchmark's files; a wrong byte is found out."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from bench.harness.data import CHUNK, MIB, PAGE, DataFile, contents, tensor_sizes, wrong_page
from bench.read.patterns import Clock, direct, sequential, torch_load, torch_reads
from tests.support.checkout import CHECKOUT


def make(folder: Path, *, safetensors: bool = False, size: int = 4 * CHUNK) -> Path:
    file = folder / "file"
    with file.open("wb") as out:
        for chunk in contents(DataFile("file", size, CHUNK, safetensors=safetensors), 0, size):
            out.write(chunk)
    return file


def test_every_page_carries_its_number_whatever_piece_it_was_written_in() -> None:
    file = DataFile("file", 3 * CHUNK, CHUNK)
    whole = b"".join(contents(file, 0, file.size))
    assert len(whole) == file.size
    assert whole[CHUNK:] == b"".join(contents(file, CHUNK, file.size))
    numbers = np.frombuffer(whole, np.uint64)[:: PAGE // 8]
    assert (numbers == np.arange(file.size // PAGE)).all()


@given(st.integers(0, 1 << 40), st.integers(0, 3 * PAGE))
def test_a_page_in_the_wrong_place_is_found(offset: int, length: int) -> None:
    first = offset // PAGE
    pages = b"".join((first + i).to_bytes(8, "little") + bytes(PAGE - 8) for i in range(5))
    begin = offset - first * PAGE
    data = pages[begin : begin + length]
    assert wrong_page(offset, data) == ""
    if length >= PAGE + 8:
        assert "came back as page" in wrong_page(offset + PAGE, data)


def test_the_real_library_reads_the_safetensors_file_in_the_order_of_the_file(tmp_path: Path) -> None:
    file = make(tmp_path, safetensors=True, size=17 * CHUNK)
    begin = int.from_bytes(file.read_bytes()[:8], "little") + 8
    with safe_open(file, framework="numpy") as tensors:
        seen = np.concatenate([tensors.get_tensor(name).view(np.uint64)[:: PAGE // 8] for name in tensors.keys()])  # noqa: SIM118  # not a dict
    assert seen[0] == begin // PAGE
    assert (np.diff(seen) == 1).all()
    assert seen[-1] == 17 * CHUNK // PAGE - 1


def test_a_large_safetensors_file_has_the_proportions_of_a_model() -> None:
    sizes = tensor_sizes(2048 * MIB)
    assert 19 <= sum("self_attn.q_proj" in name for name in sizes) <= 24
    assert list(sizes) == sorted(sizes)
    assert sum(sizes.values()) < 2048 * MIB


@given(st.integers(4, 4096))
def test_torch_reads_stay_inside_the_file_and_cover_its_tensors(mebibytes: int) -> None:
    size = mebibytes * MIB
    reads = torch_reads(size)
    assert all(offset >= 0 and length > 0 and offset + length <= size for offset, length in reads)
    tensors = reads[3:]
    assert all(a[0] + a[1] == b[0] for a, b in pairwise(tensors))
    assert sum(length for _, length in tensors) > size - 3 * MIB - 4096


@pytest.mark.parametrize("pattern", [sequential, torch_load])
def test_patterns_read_the_whole_file_and_check_it(tmp_path: Path, pattern: object) -> None:
    assert callable(pattern)
    file = make(tmp_path)
    assert pattern(str(file), Clock()) > 3.5 * CHUNK
    with file.open("r+b") as out:
        for offset in range(0, 4 * CHUNK, PAGE):  # every page now claims to be page 0
            out.seek(offset)
            out.write(bytes(8))
    with pytest.raises(RuntimeError, match="came back as page 0"):
        pattern(str(file), Clock())


def test_direct_reads_check_what_they_get(tmp_path: Path) -> None:
    file = make(tmp_path)
    assert direct(str(file), Clock()) == 4 * CHUNK
    with file.open("r+b") as out:
        out.seek(6 * MIB - PAGE)
        out.write((7).to_bytes(8, "little"))
    with pytest.raises(RuntimeError, match="came back as page 7"):
        direct(str(file), Clock())


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["mmap_alternate", "mmap_all"])
def test_two_processes_copy_all_tensors_and_notice_disorder(tmp_path: Path, pattern: str) -> None:
    file = make(tmp_path, safetensors=True, size=17 * CHUNK)
    # As the benchmark runs it: in a process of its own, which takes the helpers of multiprocessing with it.
    command = [sys.executable, "-m", "bench.read.patterns", pattern, str(file)]
    answer = json.loads(subprocess.run(command, cwd=CHECKOUT, capture_output=True, check=True).stdout)
    assert answer["bytes"] == 17 * CHUNK
    with file.open("r+b") as out:
        out.seek(2 * CHUNK)
        out.write(bytes(8))
    failed = subprocess.run(command, cwd=CHECKOUT, capture_output=True, check=False)
    assert failed.returncode == 1
    assert b"are not in order" in failed.stderr
