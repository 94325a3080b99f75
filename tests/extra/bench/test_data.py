"""The content of the benchmark's files; a wrong byte is found out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.harness.data import CHUNK, PAGE, DataFile, contents, wrong_page
from bench.read.patterns import Clock, sequential, torch_load


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


@pytest.mark.parametrize("pattern", [sequential, torch_load])
def test_patterns_read_the_whole_file_and_check_it(tmp_path: Path, pattern: object) -> None:
    assert callable(pattern)
    file = tmp_path / "file"
    file.write_bytes(b"".join(contents(DataFile("file", 4 * CHUNK, CHUNK), 0, 4 * CHUNK)))
    assert pattern(str(file), Clock()) > 3.5 * CHUNK
    with file.open("r+b") as out:
        for offset in range(0, 4 * CHUNK, PAGE):  # every page now claims to be page 0
            out.seek(offset)
            out.write(bytes(8))
    with pytest.raises(RuntimeError, match="came back as page 0"):
        pattern(str(file), Clock())
