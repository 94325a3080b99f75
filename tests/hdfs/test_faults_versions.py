"""Files that are replaced, changed or deleted while they are read: one version or an error, never a mix.

Versions have equal lengths, and every 32 bytes name theirs. Each is held by a process of its own through a descriptor
and a mapping, opened while it was the path's, and read past the page cache in turn with the others.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.checked_content import content, versions_in
from tests.tools.command import REPLACED, Place, eventually
from tests.tools.hdfs import HdfsInstance
from tests.tools.webhdfs import HdfsPopulate, WebHdfs

pytestmark = [pytest.mark.cluster, pytest.mark.mount, pytest.mark.root]

MIB = 1 << 20
SIZE = 20 * MIB
MEMORY = ("--memory", "64MiB", "--range-size", "1MiB")
GONE = {"ESTALE", "EIO"}


class Holder:
    """A process of `tests.soak.holder`."""

    def __init__(self, file: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.holder", str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.version: str = self._answer()["version"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline() or "{}")
        assert answer, f"the holder ended with status {self._process.wait()}"
        return answer

    def ask(self, word: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self._answer()

    def expect_current(self) -> None:
        for word in ("read", "map"):
            assert self.ask(word) == {"versions": [self.version], "errors": [], "bytes": SIZE}

    def expect_own_or_gone(self) -> None:
        seen = self.ask("read")
        assert set(seen["versions"]) <= {self.version}
        assert set(seen["errors"]) <= GONE
        assert seen["errors"] or seen["bytes"] == SIZE
        seen = self.ask("map")
        assert set(seen["versions"]) <= {self.version}
        assert set(seen["errors"]) <= {"SIGBUS"}
        assert seen["errors"] or seen["bytes"] == SIZE

    def is_gone(self) -> bool:
        """True if all that is not in memory fails by now, both ways."""
        self.expect_own_or_gone()
        read, mapped = self.ask("read"), self.ask("map")
        return bool(read["errors"]) and mapped["errors"] == ["SIGBUS"]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def populate(hdfs: HdfsInstance) -> Iterator[HdfsPopulate]:
    populate = HdfsPopulate(WebHdfs(hdfs.web), "/versions", block_size=MIB)
    populate.write(b"/file", content("v1", 0, SIZE))
    yield populate
    populate.delete(b"")


def replace_by_rename(hdfs: HdfsInstance, populate: HdfsPopulate, data: bytes) -> None:
    populate.write(b"/file", data)


def overwrite(hdfs: HdfsInstance, populate: HdfsPopulate, data: bytes) -> None:
    WebHdfs(hdfs.web)("PUT", "CREATE", "/versions/file", data, overwrite="true", blocksize=MIB, replication=1)


def truncate_and_append(hdfs: HdfsInstance, populate: HdfsPopulate, data: bytes) -> None:
    """The same inode; its first block is even the same block."""
    populate.truncate(b"/file", 0)
    populate.append(b"/file", data)


def shows(file: Path, version: str) -> bool:
    try:
        with open(file, "rb", buffering=0) as opened:
            return versions_in(opened.read(4096)) == {version}
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("change", [replace_by_rename, overwrite, truncate_and_append])
def test_versions_never_mix(
    hdfs: HdfsInstance,
    populate: HdfsPopulate,
    place: Place,
    change: Callable[[HdfsInstance, HdfsPopulate, bytes], None],
) -> None:
    place.forgive(REPLACED)
    live = place.mount(f"{hdfs.url}/versions", *MEMORY, "--attr-timeout", "100ms")
    file = live.path / "file"
    with ExitStack() as stack:
        held = [stack.enter_context(closing(Holder(file)))]
        for version in ("v2", "v3"):  # of v1 only the begin was read before
            change(hdfs, populate, content(version, 0, SIZE))
            eventually(partial(shows, file, version), f"{version} in new handles")
            held.append(stack.enter_context(closing(Holder(file))))
            for _ in range(2):
                for holder in held[:-1]:
                    holder.expect_own_or_gone()
                held[-1].expect_current()
        live.kill_worker()
        for holder in held[:-1]:
            eventually(holder.is_gone, f"the end of {holder.version}")
        held[-1].expect_current()
        assert [holder.version for holder in held] == ["v1", "v2", "v3"]
    assert live.status()["requests"]["failed"] == 0
    live.umount()
