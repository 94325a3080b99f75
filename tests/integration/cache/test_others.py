"""Other events around a cache folder: tools of other versions, clocks that jump, writers killed at any moment."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from stripefs.cache.cachedir import CacheDir, cached_versions, verify_version
from stripefs.write import Layout
from tests.integration.cache.writing import world
from tests.support.caches import MIB, cached, write
from tests.support.checkout import CHECKOUT
from tests.support.uploads import content, save
from tests.support.waiting import PATIENCE


def tree(folder: Path) -> dict[str, str]:
    """SHA-256 of all files below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_tool_of_another_version_keeps_its_own(source: Path, folder: Path) -> None:
    """Files of another version in the same folder stay as they are, also when all blocks are evicted."""
    names = ["/a", "/b", "/c"]
    data = {name: write(source / name[1:], 40 * MIB, seed=number) for number, name in enumerate(names)}
    theirs = [folder / "stripefs-0" / "blocks", folder / "stripefs-2" / "versions" / "00"]
    for place in theirs:
        place.mkdir(parents=True)
        (place / "usage").write_bytes(os.urandom(100))
        (place / "000000").write_bytes(os.urandom(2 * MIB))
    before = {top: tree(top) for top in theirs}
    with cached(source, folder, size=64 * MIB) as one:
        for name in names:
            assert one.read(name.encode()) == data[name]
        assert one.store.cache.quota.recount() <= 64 * MIB + 8192
        one.store.cache.quota.remove(list(one.store.cache.cachedir.versions()))
    assert {top: tree(top) for top in theirs} == before


def test_what_a_later_tool_may_add_does_no_harm(source: Path, folder: Path) -> None:
    """Files of other names, more in `about`, and segments of a format that this tool does not know."""
    data = write(source / "a", 10 * MIB)
    with cached(source, folder) as one:
        one.read(b"/a")
        (segment,) = one.segments()
        version = segment.parent
        (version / "index").write_bytes(b"something")
        (version / "about").write_text('{"path": 5, "rate": "fast", "length": [1], "keep": {}, "new": true}')
        (folder / "stripefs-1" / "writing").mkdir(exist_ok=True)
        (folder / "stripefs-1" / "writing" / "notes").write_bytes(b"")
        one.forget()
        assert one.fetched(b"/a") == 0
        with segment.open("r+b") as file:
            file.seek(8)
            file.write(b"\2")
        one.forget()
        assert one.read(b"/a") == data
        assert one.fetched(b"/a") == 0
        assert (version / "index").exists()


WRITING = """
import sys, trio
from pathlib import Path
from stripefs.cache import cache_format, policy
from stripefs.write import Layout
from tests.integration.cache.writing import World
from tests.support.uploads import content, save
from tests.support.caches import MIB

cache_format.SETTLED, policy.SLOWER = 0, 0.0

async def main():
    here = World(Path(sys.argv[1]), Path(sys.argv[2]), size=150 * MIB)
    async with here.writing(Layout.STRIPED) as drafts:
        print("ready", flush=True)
        for number in range(1, 1000):
            data = content(18 * MIB + number, seed=number)
            await save(drafts, b"/model-%s-%d" % (sys.argv[3].encode(), number), data)
            print("published", flush=True)

trio.run(main)
"""


async def test_writers_that_are_killed_at_any_moment(at_once: None, source: Path, folder: Path) -> None:
    """Two at a time, which also push one another's versions out."""
    draw = random.Random(7)
    for turn in range(5):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITING, str(source), str(folder), f"{turn}{name}"],
                cwd=CHECKOUT,
                stdout=subprocess.PIPE,
                text=True,
            )
            for name in "ab"
        ]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            if not turn:  # however slow this machine is
                assert writer.stdout.readline() == "published\n"
        for writer in writers:
            time.sleep(draw.uniform(0.1, 1.0))
            writer.send_signal(signal.SIGKILL)
        for writer in writers:
            writer.communicate(timeout=PATIENCE)
    with world(source, folder) as here:
        async with here.writing(Layout.STRIPED) as uploads:
            await save(uploads, b"/last", content(20 * MIB))
        assert not list(here.cache.cachedir.abandoned())
        published = [status for batch in here.view.scandir(b"/") for status in batch if status.length > 18 * MIB]
        assert len(published) > 1
        for status in published:
            number = status.length - 18 * MIB
            if status.name != b"last":
                assert here.load(b"/" + status.name) == content(status.length, seed=number)
        assert here.cache.stats["damaged"] == 0
        here.drain()
        checked = [verify_version(CacheDir(str(folder)), version) for version in cached_versions(CacheDir(str(folder)))]
        assert sum(found.blocks for found in checked) > 0
        assert [found for found in checked if found.damaged or found.unreadable] == []
