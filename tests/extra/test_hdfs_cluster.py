"""`./scripts/hdfs-cluster` itself: instances come, suffer and go without a trace."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mount_namespace import unshared
from tests.support.waiting import eventually
from tests.tools.hdfs import COMMAND, HdfsInstance, hdfs_instance

pytestmark = [pytest.mark.cluster, pytest.mark.root]

SMALL = ("--datanodes", "2", "--rate", "0", "--block-size", "1MiB")


@pytest.fixture(scope="module")
def one(nothing_left: None) -> Iterator[HdfsInstance]:
    with hdfs_instance("one", *SMALL, "--permissions") as instance:
        yield instance


@pytest.fixture
def whole(one: HdfsInstance) -> Iterator[HdfsInstance]:
    """`one`, whose nodes may be hurt."""
    yield one
    one.restore()


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, env=environment, timeout=120)


def webhdfs(instance: HdfsInstance, method: str, path: str, body: bytes = b"", **query: str) -> tuple[int, bytes]:
    """One WebHDFS call as root, its redirection followed by hand."""
    target = f"/webhdfs/v1{path}?" + "&".join(
        f"{key}={value}" for key, value in ({"user.name": "root"} | query).items()
    )
    status, answer, location = exchange(instance.web, method, target)
    if location:
        address, _, rest = location.removeprefix("http://").partition("/")
        status, answer, _ = exchange(address, method, f"/{rest}", body)
    return status, answer


def exchange(address: str, method: str, target: str, body: bytes = b"") -> tuple[int, bytes, str]:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request(method, target, body)
        response = connection.getresponse()
        return response.status, response.read(), response.getheader("Location", "")
    finally:
        connection.close()


def buckets(namespace: str, link: str) -> list[int]:
    """Bytes a second of each token bucket at this end of a link."""
    shown = subprocess.check_output(["tc", "-netns", namespace, "-json", "qdisc", "show", "dev", link])
    return [entry["options"]["rate"] for entry in json.loads(shown) if entry["kind"] == "tbf"]


def traces(name: str) -> list[str]:
    """Traces of the instance `name` that the machine still shows."""
    found = [entry.name for entry in Path("/run/netns").iterdir() if entry.name.startswith(f"hdfs-{name}-")]
    found += [f"process {pid}" for pid in find_nodes(name).values()]
    return found + [str(folder) for folder in Path("/var/tmp/bootseer-hdfs").glob(name)]


def find_nodes(name: str) -> dict[str, int]:
    """The pids of the JVMs of the instance `name`, by node."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue  # it ended while we looked
        for argument in arguments:
            if argument.startswith(f"-Dbootseer.hdfs={name}/") and arguments[0].endswith("java"):
                found[argument.rpartition("/")[2]] = int(folder.name)
    return found


def state_of(instance: HdfsInstance, node: str) -> str:
    facts = instance.status()
    states: dict[str, str] = {entry["node"]: entry["state"] for entry in [facts["namenode"], *facts["datanodes"]]}
    return states[node]


class TestRunning:
    def test_status_names_every_node_with_its_own_namespace_and_address(self, whole: HdfsInstance) -> None:
        facts = whole.status()
        nodes = [facts["namenode"], *facts["datanodes"]]
        assert facts["ready"]
        assert facts["safemode"] is False
        assert [node["node"] for node in nodes] == ["nn", "dn1", "dn2"]
        assert len({node["namespace"] for node in nodes}) == len({node["address"] for node in nodes}) == 3
        for node in nodes:
            assert os.readlink(f"/proc/{node['pid']}/ns/net") != os.readlink("/proc/self/ns/net")
        assert all(node["live"] for node in facts["datanodes"])

    def test_permissions_are_checked_when_asked_for(self, whole: HdfsInstance) -> None:
        webhdfs(whole, "PUT", "/closed", b"secret", op="CREATE", overwrite="true", permission="600")
        assert webhdfs(whole, "GET", "/closed", op="OPEN")[0] == 200
        assert exchange(whole.web, "GET", "/webhdfs/v1/closed?op=OPEN&user.name=nobody")[0] == 403

    def test_bytes_are_counted_at_the_datanode_that_served_them(self, whole: HdfsInstance) -> None:
        data = bytes(1 << 20)
        webhdfs(whole, "PUT", "/counted", data, op="CREATE", overwrite="true")
        _, answer = webhdfs(whole, "GET", "/counted", op="GETFILEBLOCKLOCATIONS")
        (block,) = json.loads(answer)["BlockLocations"]["BlockLocation"]
        holder = whole.node_at(block["names"][0])
        before = whole.bytes_sent()
        webhdfs(whole, "GET", "/counted", op="OPEN")
        after = whole.bytes_sent()
        grown = {node: after[node] - before[node] for node in after}
        assert grown[holder] > len(data)
        assert all(grown[node] < len(data) for node in grown if node != holder)

    def test_the_rate_is_set_at_both_ends_of_every_link(self, whole: HdfsInstance) -> None:
        whole.set_rate(20)
        caps = [buckets("hdfs-" + whole.name + "-nn", node["node"]) for node in whole.datanodes]
        caps += [buckets(node["namespace"], "eth0") for node in whole.datanodes]
        whole.set_rate(0)
        assert caps == [[20_000_000]] * 4
        assert buckets(whole.datanodes[0]["namespace"], "eth0") == []


class TestHurting:
    def test_a_paused_node_is_silent_until_it_is_resumed(self, whole: HdfsInstance) -> None:
        whole.pause("dn2")
        assert state_of(whole, "dn2") == "paused"
        whole.resume("dn2")
        assert state_of(whole, "dn2") == "running"
        whole.wait()
        assert exchange(whole.datanodes[1]["http"], "GET", "/jmx?qry=none")[0] == 200

    def test_a_killed_datanode_is_noticed(self, whole: HdfsInstance) -> None:
        whole.kill("dn1")
        eventually(lambda: not whole.status()["datanodes"][0]["live"], "the NameNode missing dn1's heartbeats")
        assert whole.status()["datanodes"][1]["live"]

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            (("kill", "dn9"), "no node 'dn9': use nn or dn1 to dn2"),
            (("restart", "dn1"), "dn1 of {name} is running: kill it first"),
            (("start",), "{name} is running: ./scripts/hdfs-cluster stop --name {name}"),
        ],
    )
    def test_refusals(self, whole: HdfsInstance, arguments: tuple[str, ...], complaint: str) -> None:
        assert_refused(run(*arguments, "--name", whole.name), complaint.format(name=whole.name))

    def test_a_dead_node_cannot_be_killed_again(self, whole: HdfsInstance) -> None:
        whole.kill("dn1")
        advice = f"is not running: ./scripts/hdfs-cluster restart dn1 --name {whole.name}"
        assert_refused(run("kill", "dn1", "--name", whole.name), advice)


class TestLife:
    def test_two_instances_stand_side_by_side_and_go_one_by_one(self, one: HdfsInstance) -> None:
        with hdfs_instance("two", "--datanodes", "1", "--rate", "0", "--no-webhdfs") as two:
            ours, theirs = one.status(), two.status()
            assert ours["network"] != theirs["network"]
            assert ours["interface"] != theirs["interface"]
            assert webhdfs(one, "PUT", "/side", b"by side", op="CREATE", overwrite="true")[0] == 201
            for address in (two.web, two.datanodes[0]["http"]):
                with pytest.raises(ConnectionRefusedError):
                    exchange(address, "GET", "/webhdfs/v1/?op=LISTSTATUS")
            interface = Path("/sys/class/net", theirs["interface"])
            assert interface.exists()
        assert not interface.exists()
        assert traces(two.name) == []
        assert webhdfs(one, "GET", "/side", op="OPEN") == (200, b"by side")

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
    def test_an_interrupted_start_leaves_nothing(self, number: int, code: int) -> None:
        name = f"test-{os.getpid()}-cut"
        start = subprocess.Popen([COMMAND, "start", "--name", name, *SMALL], stderr=subprocess.PIPE, text=True)
        eventually(lambda: any(trace.startswith("process") for trace in traces(name)), "a first process")
        start.send_signal(number)
        start.communicate(timeout=60)
        assert start.returncode == code
        assert traces(name) == []
        stopped = run("stop", "--name", name)
        assert (stopped.returncode, stopped.stderr) == (0, f"hdfs-cluster: {name} was not there: nothing to stop\n")

    def test_start_first_removes_what_a_crashed_one_left(self) -> None:
        name = f"test-{os.getpid()}-crashed"
        crash = subprocess.Popen([COMMAND, "start", "--name", name, *SMALL], stderr=subprocess.DEVNULL)
        eventually(lambda: any(trace.startswith("process") for trace in traces(name)), "a first process")
        crash.kill()
        crash.wait()
        left = set(traces(name))
        with hdfs_instance("crashed", "--datanodes", "1", "--rate", "0") as again:
            assert again.status()["ready"]
            assert not {trace for trace in left if trace.startswith("process")} & set(traces(name))
        assert traces(name) == []

    def test_a_node_that_dies_ends_the_start_with_its_reason(self, tmp_path: Path) -> None:
        name = f"test-{os.getpid()}-dying"
        with subprocess.Popen([COMMAND, "start", "--name", name, *SMALL], stderr=subprocess.PIPE, text=True) as start:
            eventually(lambda: "dn1" in find_nodes(name), "dn1")
            os.kill(find_nodes(name)["dn1"], signal.SIGKILL)
            _, said = start.communicate(timeout=120)
        assert start.returncode == 1
        assert "error: dn1 died: " in said
        assert traces(name) == []


class TestRefusing:
    """Every refusal is one line that says what to do, and leaves nothing."""

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            (("start", "--name", "a/b"), "cannot name an instance"),
            (("start", "--datanodes", "0"), "--datanodes must be 1 to 62"),
            (("start", "--datanodes", "2", "--replication", "3"), "--replication must be 1 to --datanodes (2)"),
            (("start", "--block-size", "huge"), "is not a size such as 8MiB"),
            (("start", "--block-size", "1000"), "--block-size must be at least 4 KiB"),
            (("status", "--name", "test-none"), "there is no instance 'test-none'"),
            (("kill", "nn", "--name", "test-none"), "there is no instance 'test-none'"),
        ],
    )
    def test_wrong_arguments(self, arguments: tuple[str, ...], complaint: str) -> None:
        assert_refused(run(*arguments), complaint)

    def test_a_state_folder_with_other_files_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "precious").touch()
        assert_refused(run("start", "--name", f"test-{os.getpid()}-x", "--state", str(tmp_path)), "holds other files")
        assert (tmp_path / "precious").exists()

    @pytest.mark.parametrize(
        ("absent", "complaint"),
        [
            ("ip", "apt-get install iproute2"),
            ("tc", "apt-get install iproute2"),
            ("java", "apt-get install default-jre-headless"),
            ("mvn", "apt-get install maven"),
        ],
    )
    def test_missing_programs(self, absent: str, complaint: str, tmp_path: Path) -> None:
        for program in {"ip", "tc", "nsenter", "java", "mvn"} - {absent}:
            (tmp_path / program).symlink_to(shutil.which(program) or program)
        environment = {
            "PATH": str(tmp_path),
            "PYTHONPATH": str(COMMAND.parent),
            "BOOTSEER_HADOOP_JARS": str(tmp_path / "none"),
        }
        command = [sys.executable, "-m", "hdfscluster", "start", "--name", f"test-{os.getpid()}-x"]
        assert_refused(subprocess.run(command, capture_output=True, text=True, env=environment), complaint)

    def test_a_plain_user(self) -> None:
        done = subprocess.run(["unshare", "--user", COMMAND, "start"], capture_output=True, text=True)
        assert_refused(done, "namespaces need root: sudo ./scripts/hdfs-cluster start")

    def test_too_little_memory(self, tmp_path: Path) -> None:
        meminfo = tmp_path / "meminfo"
        meminfo.write_text("MemTotal: 2000000 kB\nMemAvailable: 1000000 kB\n")
        start = (str(COMMAND), "start", "--name", f"test-{os.getpid()}-x")
        command = unshared(tmp_path, *start, prepare=f"mount --bind {meminfo} /proc/meminfo")
        done = subprocess.run(command, capture_output=True, text=True)
        assert_refused(done, "8 DataNodes need about 1800 MiB of memory and 976 MiB are free: use fewer --datanodes")


def assert_refused(done: subprocess.CompletedProcess[str], complaint: str) -> None:
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "error: " in line]
    assert complaint in line
    assert "Traceback" not in done.stderr
