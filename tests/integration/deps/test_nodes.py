"""Many hosts that start at once: each with a daemon, a cache and mounts of its own, which see one store."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.deps.installed import snapshots_in
from tests.support.deps.starting import by_uv, start
from tests.support.deps.wheels import wheel
from tests.support.mount_namespace import unshared
from tests.tools.imagefs_daemon import Service, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root, pytest.mark.slow]

NODES = 8
_THEN = "import heavy; print(heavy.VALUE, len(open(heavy.__path__[0] + '/data.bin', 'rb').read()))"
_SEEN = "7 320000\n"
_WITHIN = 280.0  # seconds: a lease and its takeover, eight daemons, and pip, on two processors


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Service]]:
    with contextlib.ExitStack() as stack:
        made = []
        for number in range(NODES):
            folder = tmp_path / f"node{number}"
            folder.mkdir()
            made.append(stack.enter_context(contextlib.closing(Service(folder, background_rate="0"))))
        yield made


class Fleet:
    """Starts of one job on all nodes. Each has a directory of its own at the path of the target.

    pause: seconds before it is installed. more: what is run afterwards, with $log and $target.
    """

    def __init__(self, folder: Path, nodes: list[Service], pause: float, more: str = "true") -> None:
        self.log = folder / "log"
        self.store = folder / "store"
        target = folder / "deps"
        target.mkdir()
        files = {"heavy/__init__.py": "VALUE = 7\n", "heavy/data.bin": b"0123456789abcdef" * 20_000}
        wheel(folder / "wheels", "heavy", files)
        install = " ".join(by_uv(folder / "wheels", target))
        script = f"log={self.log}; target={target}; echo $IMAGEFS_RUNTIME >> $log; sleep {pause}; {install} && {more}"
        command = ["sh", "-c", script]
        under = unshared(folder, prepare=f"mount -t tmpfs node {target}")
        self.starts = {
            node.settings.runtime: start(node, self.store, target, command, user=-1, then=_THEN, under=under)
            for node in nodes
        }

    def installed(self) -> list[str]:
        """The nodes that have begun to."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def told(self) -> dict[str, tuple[str, str]]:
        """Standard output and standard error of each node, when all are done."""
        return {name: self._told(process) for name, process in self.starts.items()}

    def _told(self, process: subprocess.Popen[str]) -> tuple[str, str]:
        out, err = process.communicate(timeout=_WITHIN)
        return out, err


def test_one_installs_and_seven_mount(tmp_path: Path, nodes: list[Service]) -> None:
    fleet = Fleet(tmp_path, nodes, pause=1)
    told = fleet.told()
    assert [out for out, _ in told.values()] == [_SEEN] * NODES
    assert len(fleet.installed()) == 1
    assert sum("mounted at" in err for _, err in told.values()) == NODES - 1
    assert len(snapshots_in(fleet.store).stored()) == 1


_TOGETHER = """
if [ "$(head -n 1 $log)" != "$IMAGEFS_RUNTIME" ]; then
    for turn in $(seq 600); do [ "$(wc -l < $log)" = 3 ] && break; sleep 0.1; done
    [ "$(wc -l < $log)" = 3 ]
fi"""


def test_nobody_waits_for_what_is_not_published(tmp_path: Path, nodes: list[Service]) -> None:
    """One has found why it cannot be. The others install side by side, each until the other does so too."""
    secret = "echo 'machine a login b password c' > $target/.netrc"
    fleet = Fleet(tmp_path, nodes[:3], pause=1, more=f"{secret} && {_TOGETHER}")
    told = fleet.told()
    assert [out for out, _ in told.values()] == [_SEEN] * 3
    assert len(fleet.installed()) == 3
    assert any("was not published by who installed it: " in err and ".netrc" in err for _, err in told.values())
    assert snapshots_in(fleet.store).stored() == {}


def test_the_leader_is_killed(tmp_path: Path, nodes: list[Service]) -> None:
    fleet = Fleet(tmp_path, nodes[:4], pause=8)
    eventually(lambda: len(fleet.installed()) == 1, "a leader")
    (first,) = fleet.installed()
    leader = fleet.starts.pop(first)
    leader.kill()
    leader.communicate()
    told = fleet.told()
    assert [out for out, _ in told.values()] == [_SEEN] * 3
    assert len(fleet.installed()) == 2
    assert sum("mounted at" in err for _, err in told.values()) == 2
    assert len(snapshots_in(fleet.store).stored()) == 1
