"""The state that NameNode and DataNodes report: JMX over their HTTP ports, asked from inside their namespaces."""

from __future__ import annotations

import http.client
import json
import os
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from hdfscluster.config import Node, Spec
from hdfscluster.network import inside

__all__ = ["Health", "ask_namenode", "has_reported"]

_PATIENCE = 3.0  # seconds; a paused or busy JVM may not answer at all


@dataclass(frozen=True, slots=True)
class Health:
    """The NameNode's view. `live` maps the transfer address of each live DataNode to the seconds since it was heard.

    `reports` counts the full block reports taken in since the NameNode started.
    """

    safemode: bool
    live: dict[str, int]
    reports: int


def ask_namenode(spec: Spec) -> Health | None:
    """None when the NameNode does not answer."""
    info = _bean(spec, spec.namenode, "Hadoop:service=NameNode,name=NameNodeInfo")
    activity = info and _bean(spec, spec.namenode, "Hadoop:service=NameNode,name=NameNodeActivity")
    if not info or not activity:
        return None
    nodes = json.loads(info["LiveNodes"]).values()
    live = {node["xferaddr"]: int(node["lastContact"]) for node in nodes if node["adminState"] == "In Service"}
    return Health(bool(info["Safemode"]), live, int(activity["StorageBlockReportNumOps"]))


def has_reported(spec: Spec, node: Node) -> bool:
    """True if this DataNode has reported all its blocks to the NameNode since it started."""
    activity = _bean(spec, node, "Hadoop:service=DataNode,name=DataNodeActivity*")
    return activity is not None and int(activity["BlockReportsNumOps"]) > 0


def _bean(spec: Spec, node: Node, query: str) -> dict[str, Any] | None:
    connection = http.client.HTTPConnection(spec.web_host(node), node.ports["http"], timeout=_PATIENCE)
    try:
        # Only root may enter a namespace; others can ask wherever the web port is open to the host.
        with inside(node.namespace) if os.geteuid() == 0 else nullcontext():
            connection.connect()
        connection.request("GET", f"/jmx?qry={query}")
        beans = json.loads(connection.getresponse().read())["beans"]
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return None  # not up yet, or no longer
    finally:
        connection.close()
    return beans[0] if beans else None
