"""DuckDB through fsspec: it seeks and reads in one file object from several threads."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stripefs.fsspec import StripefsFileSystem
from tests.support.python_api import spread

ROWS = 500_000
ROW_GROUPS = 25
RUNS = 50


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[int, int, int]]:
    """A folder with `table.parquet`, and what is to be found in it."""
    folder = tmp_path_factory.mktemp("table")
    number = np.arange(ROWS)
    value = np.random.default_rng(1).integers(0, 1 << 40, ROWS)
    file = folder / "table.parquet"
    pq.write_table(pa.table({"number": number, "value": value}), file, row_group_size=ROWS // ROW_GROUPS)
    assert pq.read_metadata(file).num_row_groups == ROW_GROUPS
    return folder, (int(number.sum()), int(value.sum()), ROWS)


@pytest.mark.parametrize("threads", [1, 4])
def test_sums_over_a_shared_file_are_right(threads: int, table: tuple[Path, tuple[int, int, int]]) -> None:
    folder, right = table
    question = "SELECT sum(number)::BIGINT, sum(value)::BIGINT, count(*) FROM read_parquet('stripefs://table.parquet')"
    for _ in range(RUNS):
        files = StripefsFileSystem(root=spread(folder), skip_instance_cache=True)
        with duckdb.connect(config={"threads": threads}) as connection:
            connection.register_filesystem(files)
            assert connection.execute(question).fetchone() == right
