"""Start-up caches of containers: published when a job is ready, mounted where it starts next.

Each host is a daemon with a cache of its own. All tests share two of them, and each has a store of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefs.startup_cache.key import FOLDER
from tests.integration.imagefs.conftest import next_line, programs
from tests.support.images.faults import mounts_below, objects, until_nothing_is_left
from tests.support.start_events import events_in
from tests.tools.imagefs_daemon import Service, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]

FILL = "cd $TRITON_CACHE_DIR; mkdir -p a; echo compiled >a/kernel.so; chmod 700 a/kernel.so; echo x >busy.lock;"
READY = "touch $IMAGEFS_READY; read line;"
LOOK = "cat $TRITON_CACHE_DIR/a/kernel.so 2>/dev/null || echo nothing;"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return programs(tmp_path)


@pytest.fixture(scope="module")
def _hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Service]]:
    with contextlib.ExitStack() as held:
        yield [held.enter_context(contextlib.closing(Service(tmp_path_factory.mktemp("host")))) for _ in range(2)]


@pytest.fixture
def hosts(_hosts: list[Service]) -> Iterator[list[Service]]:
    """Two."""
    yield _hosts
    for host in _hosts:
        host.end_commands()
        if host.answers():
            until_nothing_is_left(host)


class Job:
    """A start under way."""

    def __init__(self, host: Service, store: Path, script: str, *flags: str) -> None:
        # The salt is what one would give for the scripts of a test, which differ between starts of one job.
        ours = ("--startup-cache", "auto", "--network", "none", "--env", f"SCRIPT={script}")
        command = ("run", *ours, *flags, f"{store}#small", "--", "sh", "-c", 'eval "$SCRIPT"')
        self.process = host.start(*command, stdin=subprocess.PIPE)

    def end(self) -> tuple[str, str]:
        """The output of the job, and ours."""
        out, errors = self.process.communicate("\n", timeout=60)
        assert self.process.returncode == 0, errors
        return out, errors


def published(store: Path) -> list[Path]:
    return objects(store, "deps") if (store / "deps").is_dir() else []


def publish(host: Service, store: Path, script: str = FILL, *flags: str) -> str:
    """Start a job, and end it once its caches are published; the key."""
    before = len(published(store))
    job = Job(host, store, script + READY, *flags)
    eventually(lambda: len(published(store)) > before, "the caches to be published")
    errors = job.end()[1]
    assert "imagefs run: miss" in errors
    assert f" published: {FOLDER}" in errors
    (key,) = {path.name for path in published(store)}
    return key


@pytest.mark.parametrize("flags", [["--rw", "--no-record"], ["--plane", "tree"]], ids=" ".join)
def test_a_start_elsewhere_has_what_the_first_one_compiled(
    hosts: list[Service], store: Path, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for host in hosts:
        monkeypatch.setitem(host.environment, "BOOTSEER_EVENTS", str(tmp_path / "events"))
    key = publish(hosts[0], store, FILL, *flags)
    look = (
        f"touch $IMAGEFS_READY && {LOOK} cd $TRITON_CACHE_DIR; stat -c %a a/kernel.so; ls;"
        "echo more >a/more; echo other >a/kernel.so; cat a/*"
    )
    for again in ([], flags):  # a container's writes go with it
        out, errors = Job(hosts[1], store, look, *again).end()
        assert out == "compiled\n700\na\nother\nmore\n"
        assert f"imagefs run: hit {key[:12]}: " in errors
    events = [one for one in events_in(tmp_path / "events") if one["stage"] == "compile"]
    assert sorted(one["name"] for one in events) == ["hit", "hit", "miss"]
    assert {one["facts"]["key"] for one in events} == {key}
    for host in hosts:
        assert os.listdir(Path(host.settings.cache, "upper")) == []


def test_another_user_may_write_and_execute_there(hosts: list[Service], store: Path) -> None:
    fill_as_ann = "cd $TRITON_CACHE_DIR; cat /bin/busybox >echo; chmod 755 echo;"
    publish(hosts[0], store, fill_as_ann, "--user", "ann")
    script = "cd $TRITON_CACHE_DIR; ./echo ran; stat -c %U echo; touch new && rm echo && ls"
    assert Job(hosts[1], store, script, "--user", "ann").end()[0] == "ran\nann\nnew\n"


def test_a_variable_that_is_set_is_left_alone(hosts: list[Service], store: Path) -> None:
    script = "echo $TRITON_CACHE_DIR $CUDA_CACHE_PATH"
    out, errors = Job(hosts[0], store, script, "--env", "TRITON_CACHE_DIR=/tmp/own").end()
    assert out == f"/tmp/own {FOLDER}/cuda\n"
    assert "left alone: TRITON_CACHE_DIR\n" in errors


def test_a_store_that_is_damaged_costs_no_job(hosts: list[Service], store: Path) -> None:
    key = publish(hosts[0], store)
    image = json.loads(published(store)[0].read_text())["image"]
    (store / "images" / image).unlink()
    out, errors = Job(hosts[1], store, LOOK).end()
    assert (out, f"miss {key[:12]}: " in errors) == ("nothing\n", True)
    published(store)[0].write_text("{")
    job = Job(hosts[1], store, LOOK + FILL + READY)
    eventually(lambda: published(store)[0].read_text() != "{", "the caches to be published again")
    assert job.end()[0] == "nothing\n"
    assert Job(hosts[0], store, LOOK).end()[0] == "compiled\n"


def test_a_run_that_is_killed_leaves_nothing(hosts: list[Service], store: Path) -> None:
    host = hosts[0]
    publish(host, store)
    for script in (LOOK + "sleep 1000", "echo nothing; touch $IMAGEFS_READY; sleep 1000"):
        flags = [] if script.startswith(LOOK) else ["--startup-cache-salt", "other"]
        job = Job(host, store, script, *flags)
        next_line(job.process)
        job.process.send_signal(signal.SIGKILL)
        job.process.communicate(timeout=60)
    eventually(lambda: host.status()["images"] == [], "the image to be let go")
    Job(host, store, "true").end()  # which sweeps away what the others left
    eventually(lambda: os.listdir(Path(host.settings.cache, "upper")) == [], "what was written to go")
    assert mounts_below(host) == [host.settings.devices]
