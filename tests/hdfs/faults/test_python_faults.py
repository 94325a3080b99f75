"""Python programs without a mount, on a real HDFS whose DataNodes fall silent."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.hdfs.test_python import DATA, connect
from tests.tools.hdfs import HdfsInstance

pytestmark = [pytest.mark.cluster, pytest.mark.root]


def test_a_process_ends_although_a_data_host_is_silent(fault_hdfs: HdfsInstance) -> None:
    connect(fault_hdfs, "python-silent").write_bytes("file", DATA * 4)
    program = """
import sys, threading, stripefs
file = stripefs.open(sys.argv[1])
file.read(10)
print("ready", flush=True)
sys.stdin.read(1)
def read():
    try:
        file.read()
    except OSError:
        pass
threading.Thread(target=read, daemon=True).start()
while not stripefs.api.engine.engine()._calls:
    pass
"""
    command = [sys.executable, "-W", "error", "-c", program, f"{fault_hdfs.url}/python-silent/file"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        fault_hdfs.pause(*(facts["node"] for facts in fault_hdfs.datanodes))
        process.communicate("x", timeout=120)
    assert process.returncode == 0
