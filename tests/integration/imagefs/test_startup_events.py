"""Events that imagefs writes about a start: each once, in order, of the start that it belongs to."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefs.daemon.client import Client
from imagefs.daemon.protocol import Lease
from imagefs.format.index import BLOCK
from stripefs.settings import StoreSettings
from tests.integration.imagefs.conftest import next_line, programs
from tests.support.images.faults import FickleServer
from tests.support.start_events import events_in, pairs
from tests.tools.imagefs_daemon import Service, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]

SETTINGS = {"background_rate": "0"}

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs(tmp_path_factory.mktemp("image"), 8 << 20, Cmd=["sh"])


@pytest.fixture
def new_store(tmp_path: Path) -> Path:
    """One whose blocks no daemon has."""
    return programs(tmp_path / "image", 8 << 20, Cmd=["sh"])


def names(spool: Path) -> list[str]:
    return [str(one.get("name", "")) for one in events_in(spool)]


@pytest.fixture
def spool(host: Service, tmp_path: Path) -> Iterator[Path]:
    """The folder of events of the commands of this test, which belong to rank 3 of run r7."""
    folder = tmp_path / "events"
    before = dict(host.environment)
    host.environment |= {
        "BOOTSEER_EVENTS": str(folder), "BOOTSEER_RUN": "r7", "BOOTSEER_RANK": "3", "BOOTSEER_NODE": "node-1",
        "TRACEPARENT": f"00-{TRACE}-b7ad6b7169203331-01",
    }  # fmt: skip
    yield folder
    host.environment = before


@pytest.mark.parametrize("record", [[], ["--no-record"]])
def test_a_container(host: Service, store: Path, spool: Path, record: list[str]) -> None:
    script = "touch $IMAGEFS_READY; echo $BOOTSEER_RUN $BOOTSEER_RANK $BOOTSEER_NODE $TRACEPARENT"
    said = host.ok("run", *record, f"{store}#small", "--", "sh", "-c", script)
    assert said == f"r7 3 node-1 00-{TRACE}-b7ad6b7169203331-01\n"
    events = events_in(spool)
    assert {(one["run"], one["rank"], one["node"], one["trace"]) for one in events} == {("r7", 3, "node-1", TRACE)}
    spans = pairs(events)
    attach, executed = spans["image", "attach"], spans["container", "exec"]
    assert attach[1]["facts"]["image"].startswith("sha256:") or len(attach[1]["facts"]["image"]) == 64
    assert (executed[0]["parent"], attach[0]["parent"]) == ("b7ad6b7169203331", executed[0]["span"])
    assert executed[0]["mono_ns"] <= attach[0]["mono_ns"]
    assert attach[1]["mono_ns"] <= executed[1]["mono_ns"]
    (ready,) = [one for one in events if one["stage"] == "ready"]
    assert ready["event"] == "instant"
    assert executed[0]["mono_ns"] < ready["mono_ns"]
    resolve = spans["image", "resolve"]  # which the daemon saw
    assert resolve[0]["parent"] == attach[0]["span"]
    assert attach[0]["mono_ns"] <= resolve[0]["mono_ns"] <= resolve[1]["mono_ns"] <= attach[1]["mono_ns"]
    assert [one["name"] for one in events if one["event"] == "instant" and one["stage"] == "image"][-1] == "on demand"


def test_a_job_whose_file_says_that_it_is_ready(host: Service, store: Path, spool: Path, tmp_path: Path) -> None:
    """The daemon looks for the file."""
    script = [
        "--bind",
        f"{tmp_path}:/srv",
        "--ready-file",
        str(tmp_path / "is ready"),
        f"{store}#small",
        "--",
        "sh",
        "-c",
    ]
    process = host.start("run", *script, "touch '/srv/is ready'; read line", stdin=-1)
    eventually(lambda: [one for one in host.status()["images"] if one["ready"]], "the job to be ready")
    process.communicate("\n", timeout=60)
    assert [one["event"] for one in events_in(spool) if one["stage"] == "ready"] == ["instant"]


def test_a_folder_that_cannot_be_written_stops_no_job(host: Service, store: Path, spool: Path) -> None:
    spool.write_text("a file")
    done = host.run("run", f"{store}#small", "--", "sh", "-c", "echo done; exit 3")
    assert (done.returncode, done.stdout) == (3, "done\n")
    assert done.stderr.endswith(f"{spool} is no directory: the job starts without events\n")
    assert len(done.stderr.splitlines()) == 1
    assert host.run("run", "--events", str(spool), f"{store}#small", "--", "true").returncode == 125
    assert spool.read_text() == "a file"


def test_events_for_which_there_is_no_room_are_told_to_be_lost(host: Service, store: Path, spool: Path) -> None:
    spool.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", spool], check=True)
    try:
        (spool / "all of it").write_bytes(bytes(4096))
        done = host.run("run", f"{store}#small", "--", "sh", "-c", "echo done; exit 3")
    finally:
        subprocess.run(["umount", "--lazy", spool], check=True)
    assert (done.returncode, done.stdout) == (3, "done\n")
    assert done.stderr == f"imagefs run: events are lost: {spool}: No space left on device\n"


def test_a_mount(host: Service, store: Path, spool: Path) -> None:
    place = host.mountpoint("events")
    host.ok("mount", f"{store}#small", str(place))
    host.ok("ready", str(place))
    host.ok("umount", str(place))
    events = events_in(spool)
    begin, end = pairs(events)["image", "attach"]
    assert (begin["facts"]["mount"], "error" in end["facts"]) == (str(place), False)
    assert [one["event"] for one in events if one["stage"] == "ready"] == ["instant"]


def test_without_a_folder_nothing_is_written_or_handed_on(host: Service, store: Path, spool: Path) -> None:
    del host.environment["BOOTSEER_EVENTS"], host.environment["BOOTSEER_NODE"]
    said = host.ok("run", f"{store}#small", "--", "sh", "-c", "echo $BOOTSEER_RUN $BOOTSEER_NODE.")
    assert said == "r7 .\n"
    assert not spool.exists()


def test_what_the_daemon_saw(service: Service, new_store: Path, tmp_path: Path) -> None:
    """Of a first start, all of whose blocks come when they are touched."""
    spool = tmp_path / "events"
    service.environment |= {"BOOTSEER_EVENTS": str(spool), "BOOTSEER_RUN": "r8"}
    script = "busybox md5sum /large >/dev/null; touch $IMAGEFS_READY; read line"
    process = service.start("run", f"{new_store}#small", "--", "sh", "-c", script, stdin=-1)
    eventually(lambda: names(spool).count("on demand"), "the end of the start")
    events = events_in(spool)
    (first,) = [one for one in events if one.get("name") == "first byte"]
    (on_demand,) = [one for one in events if one.get("name") == "on demand"]
    attach = next(one for one in events if one.get("name") == "attach")
    assert attach["mono_ns"] < first["mono_ns"] < on_demand["mono_ns"]
    assert (first["run"], on_demand["run"]) == ("r8", "r8")
    facts = on_demand["facts"]
    assert facts["bytes"] <= facts["misses"] * BLOCK
    assert facts["bytes"] + facts["hits"] * BLOCK >= 8 << 20
    assert (facts["misses"] > 0, facts["wait_ns"] > 0) == (True, True)
    process.communicate("\n", timeout=60)
    assert names(spool).count("on demand") == 1
    pairs(events_in(spool))


def test_what_comes_ahead(service: Service, new_store: Path, tmp_path: Path) -> None:
    """The second start has a plan, on a host whose cache is empty. The daemon has a folder of its own."""
    script = ["sh", "-c", "busybox md5sum /large >/dev/null; touch $IMAGEFS_READY"]
    service.ok("run", f"{new_store}#small", "--", *script)
    eventually(lambda: "plan_traces" in service.log(), "the plan")
    service.stop()
    shutil.rmtree(service.settings.cache)
    spool = tmp_path / "host"
    service.environment |= {"IMAGEFS_EVENTS": str(spool), "BOOTSEER_EVENTS": str(tmp_path / "job")}
    service.environment |= {"BOOTSEER_RUN": "r9", "BOOTSEER_RANK": "5"}
    service.ok("run", f"{new_store}#small", "--", *script)
    ((precision, recall),) = re.findall(r"'precision': ([0-9.]+), 'recall': ([0-9.]+)", service.log())
    assert min(float(precision), float(recall)) > 0.9  # the kernel may read a little further ahead than it did
    service.stop()
    events = events_in(spool)
    assert {(one["run"], one.get("rank")) for one in events} == {("r9", 5)}
    _, end = pairs(events)["image", "hot device"]
    assert end["facts"]["misses"] * BLOCK >= end["facts"]["bytes"] >= 8 << 20
    assert {"resolve", "first byte", "on demand"} <= set(names(spool))
    assert set(names(tmp_path / "job")) == {"exec", "attach", ""}


@pytest.mark.parametrize("of_host", [False, True])
def test_a_store_that_is_away(service: Service, new_store: Path, tmp_path: Path, of_host: bool) -> None:
    """A wait of the job for its blocks has a cause, and is told once."""
    spool = tmp_path / "events"
    service.environment |= {"IMAGEFS_EVENTS" if of_host else "BOOTSEER_EVENTS": str(spool), "BOOTSEER_RUN": "r8"}
    script = "echo begun; read line; busybox md5sum /large >/dev/null; touch $IMAGEFS_READY; read line"
    with FickleServer(new_store) as server:
        process = service.start("run", f"{server.url}#small", "--", "sh", "-c", script, stdin=-1)
        assert process.stdin is not None
        assert next_line(process) == "begun\n"
        server.always = "reset"
        process.stdin.write("\n")
        process.stdin.flush()
        eventually(lambda: re.search(r"next try in [12]\.", service.log()), "a pause of a second")
        server.always = None
        process.communicate("\n", timeout=60)
        assert process.returncode == 0
        service.stop()
        told = {"cause": "store", "host": server.url.removeprefix("http://")}
    stalls = [one for one in events_in(spool) if one.get("name") == "stall"]
    assert all((one["kind"], one["facts"], one["run"]) == ("wait", told, "r8") for one in stalls)
    assert pairs(stalls)


def test_a_lease_is_of_the_start_that_it_names(service: Service, new_store: Path, tmp_path: Path) -> None:
    """The folder is the daemon's own, whatever a request says."""
    client = Client(service.settings._replace(events=str(tmp_path / "events")))
    lease, start = Lease("1", "test"), {"run": "r9", "rank": 2, "folder": str(tmp_path / "mine"), "events": "/mine"}
    held = client.hold(StoreSettings(url=str(new_store)), "small", lease, start=start)
    assert len(Path(held.lowerdir, "large").read_bytes()) == 8 << 20
    client.release(lease, at_once=True)
    eventually(lambda: service.status()["images"] == [], "the end of the mount")
    service.stop()
    events = events_in(tmp_path / "events")
    assert {(one["run"], one["rank"]) for one in events} == {("r9", 2)}
    assert [one["name"] for one in events if one["event"] == "instant"] == ["first byte", "on demand"]
    assert not (tmp_path / "mine").exists()
