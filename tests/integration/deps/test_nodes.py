"""Many hosts that start at once: each with a daemon, a cache and mounts of its own, which see one store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.deps.installed import snapshots_in
from tests.support.deps.starting import by_uv, start
from tests.support.deps.wheels import wheel
from tests.support.mount_namespace import unshared
from tests.tools.imagefs_daemon import PATIENCE, Service

pytestmark = [pytest.mark.mount, pytest.mark.root, pytest.mark.slow]

NODES = 4


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Service]]:
    with contextlib.ExitStack() as stack:
        made = []
        for number in range(NODES):
            folder = tmp_path / f"node{number}"
            folder.mkdir()
            made.append(stack.enter_context(contextlib.closing(Service(folder, background_rate="0"))))
        yield made


def test_one_installs_and_the_others_mount(tmp_path: Path, nodes: list[Service]) -> None:
    """Each has a directory of its own at the path of the target."""
    log, store, target = tmp_path / "log", tmp_path / "store", tmp_path / "deps"
    target.mkdir()
    files = {"heavy/__init__.py": "VALUE = 7\n", "heavy/data.bin": b"0123456789abcdef" * 20_000}
    wheel(tmp_path / "wheels", "heavy", files)
    command = ["sh", "-c", f"echo x >> {log}; sleep 1; {' '.join(by_uv(tmp_path / 'wheels', target))}"]
    under = unshared(tmp_path, prepare=f"mount -t tmpfs node {target}")
    then = "import heavy; print(heavy.VALUE, len(open(heavy.__path__[0] + '/data.bin', 'rb').read()))"
    starts = [start(node, store, target, command, user=-1, then=then, under=under) for node in nodes]
    told = [process.communicate(timeout=PATIENCE * 4) for process in starts]
    assert [out for out, _ in told] == ["7 320000\n"] * NODES
    assert log.read_text() == "x\n"
    assert sum("mounted at" in err for _, err in told) == NODES - 1
    assert len(snapshots_in(store).stored()) == 1
