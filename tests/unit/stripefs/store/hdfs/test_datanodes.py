"""Addresses of DataNodes."""

from __future__ import annotations

from typing import cast

import pytest

from stripefs.store.hdfs.block_locations import DataNodes
from stripefs.store.hdfs.namenode import NameNodeRest
from stripefs.store.hdfs.wire import Replica

NAME = "10.0.0.1:9866"


@pytest.mark.parametrize("by_hostname", [False, True])
def test_block_locations_tell_where_a_datanode_is_now(by_hostname: bool) -> None:
    nodes = DataNodes(cast("NameNodeRest", None), by_hostname=by_hostname)  # which is not asked for an address
    for ip, hostname, port in (("10.0.0.1", "a", 9864), ("10.0.0.1", "b", 9870), ("10.0.0.2", "b", 9871)):
        nodes.learn([Replica(NAME, ip=ip, hostname=hostname, web_port=port)])
        assert nodes.address(NAME) == f"{hostname if by_hostname else ip}:{port}"
    nodes.learn([Replica(NAME, ip="10.0.0.3", hostname="c", web_port=0)])
    assert nodes.address(NAME).endswith(":9871"), "no address is no news"


@pytest.mark.parametrize(
    ("by_hostname", "name", "address"),
    [
        (False, NAME, NAME),
        (True, NAME, "a.example:9866"),
        (False, "2001:db8::1:9866", "2001:db8::1:9866"),
        (True, "2001:db8::1:9866", "a.example:9866"),
    ],
)
def test_transfer_ports_are_reached_by_address_or_by_name(by_hostname: bool, name: str, address: str) -> None:
    nodes = DataNodes(cast("NameNodeRest", None), by_hostname=by_hostname)
    assert nodes.transfer_address(name) == name, "until block locations tell of it"
    nodes.learn([Replica(name, ip="10.0.0.9", hostname="a.example", web_port=0)])
    assert nodes.transfer_address(name) == address
