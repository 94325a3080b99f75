"""Publications of a writer whose network is cut for up to twice its lease, a small share of the full counts."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.soak.right import Context, publication_hdfs
from tests.soak.right.publication_hdfs import FILES, Cut
from tests.tools.hdfs import HdfsInstance

_CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2)"


def test_a_cut_loses_what_is_sent(fault_hdfs: HdfsInstance) -> None:
    addresses = [fault_hdfs.rpc, fault_hdfs.datanodes[0]["transfer"]]
    cut = Cut(fault_hdfs)

    def reached(inside: list[str]) -> list[bool]:
        commands = [[*inside, sys.executable, "-c", _CONNECT, *address.split(":")] for address in addresses]
        return [subprocess.run(command, capture_output=True).returncode == 0 for command in commands]

    with cut.made() as inside:
        assert reached(inside) == [True, True]
        cut.set("down")
        assert reached(inside) == [False, False]
        cut.set("up")
        assert reached(inside) == [True, True]
    host, _, port = fault_hdfs.rpc.partition(":")
    socket.create_connection((host, int(port)), timeout=10).close()
    assert not Path(f"/run/netns/{cut.name}").exists()


def test_no_closed_file_is_lost(fault_hdfs: HdfsInstance, tmp_path: Path) -> None:
    counters: Counter[str] = Counter()
    publication_hdfs.play(Context(3, 1.0, tmp_path, print, lambda: fault_hdfs), "partitioned", 0, counters)
    assert counters["hdfs_partitioned"] >= FILES
    assert counters["closed"] > 0
