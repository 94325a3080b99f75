"""How a program lists a directory with sizes: `python -m bench.write.listing FOLDER COUNT LENGTH`, twice.

Every entry must be a file of LENGTH bytes. Answers with JSON {"cold", "again"}, in seconds. Between the two it waits
until what the kernel knows of the entries is out of date.
"""

from __future__ import annotations

import json
import os
import sys
import time

__all__ = ["look", "main"]

_OUT_OF_DATE = 2.0  # seconds; the default of --attr-timeout is 1


def look(folder: str, count: int, length: int) -> float:
    """Seconds for names and lengths of all entries. Raises RuntimeError unless they are as they should be."""
    begin = time.monotonic()
    with os.scandir(folder) as entries:
        lengths = [entry.stat(follow_symlinks=False).st_size for entry in entries]
    seconds = time.monotonic() - begin
    wrong = sum(1 for each in lengths if each != length)
    if len(lengths) != count or wrong:
        raise RuntimeError(f"{folder} lists {len(lengths)} of {count} files, {wrong} of them with a wrong length")
    return seconds


def main() -> None:
    folder, count, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    cold = look(folder, count, length)
    time.sleep(_OUT_OF_DATE)
    print(json.dumps({"cold": cold, "again": look(folder, count, length)}), flush=True)


if __name__ == "__main__":
    main()
