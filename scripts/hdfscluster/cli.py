"""The command `hdfs-cluster`. Answers go to standard output, progress and errors (one line) to standard error.

Exit codes: 0 done, 1 what the line says, 2 a wrong argument, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from hdfscluster import instance, network
from hdfscluster.config import NAMENODE, STANDBY, Spec, parse_size
from hdfscluster.errors import ClusterError
from hdfscluster.jars import ensure_jars

__all__ = ["main"]


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Interrupted(BaseException):
    """A signal that ends us, as an exception so that what was begun is undone."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    for number in _ENDING:
        signal.signal(number, _interrupt)
    try:
        _check_machine(options.command)
        _COMMANDS[options.command](options)
    except ClusterError as error:
        _say(f"error: {error}")
        return 1
    except _Interrupted as interrupted:
        return 128 + interrupted.number
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hdfs-cluster", description="A real HDFS on this machine: a JVM and a network namespace for each node."
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--name", default="default", help="which instance (several run side by side)")
    common.add_argument("--state", default="", metavar="FOLDER", help="where it keeps its data and logs")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    start = commands.add_parser(
        "start", parents=[common], help="start a fresh, empty instance and wait until it serves"
    )
    start.add_argument("--datanodes", type=int, default=8, metavar="N")
    start.add_argument(
        "--rate", type=_rate, default="40", metavar="MB/s", help="of each DataNode and direction; 0: no cap"
    )
    start.add_argument("--block-size", default="8MiB", metavar="SIZE")
    start.add_argument("--replication", type=int, default=1, metavar="N")
    start.add_argument("--permissions", action="store_true", help="let the NameNode check permissions")
    start.add_argument("--no-webhdfs", action="store_true", help="make all web ports unreachable")
    start.add_argument("--standby", action="store_true", help="with a second NameNode, nn2, which can take over")
    start.add_argument(
        "--set",
        action="append",
        default=[],
        dest="properties",
        metavar="KEY=VALUE",
        help="a property of Hadoop, for all nodes and clients; may be repeated",
    )
    start.add_argument("--json", action="store_true", help="print what `status --json` prints")

    commands.add_parser("stop", parents=[common], help="stop it and remove all it left, data included")
    status = commands.add_parser("status", parents=[common], help="what runs, at which addresses")
    status.add_argument("--json", action="store_true")
    for name, text in (
        ("kill", "SIGKILL nodes"),
        ("pause", "SIGSTOP nodes: their connections stay and nothing answers"),
        ("resume", "let paused nodes go on"),
        ("restart", "start killed nodes again, with their data, and wait until all that run serve"),
    ):
        to_nodes = commands.add_parser(name, parents=[common], help=text)
        to_nodes.add_argument("nodes", metavar="NODE", nargs="+", help="nn or dn3")
    safe = commands.add_parser("safemode", parents=[common], help="let the NameNode refuse changes, as for maintenance")
    safe.add_argument("wanted", choices=("on", "off"))
    active = commands.add_parser("active", parents=[common], help="make one of two NameNodes the active one")
    active.add_argument("node", choices=(NAMENODE, STANDBY))
    commands.add_parser("wait", parents=[common], help="wait until the NameNode and every node that runs serve")
    rate = commands.add_parser("rate", parents=[common], help="change the cap of every DataNode")
    rate.add_argument("rate", type=_rate, metavar="MB/s", help="0: no cap")
    commands.add_parser("report-bytes", parents=[common], help="bytes each DataNode sent and received, as JSON")
    commands.add_parser("jars", help="fetch Hadoop's jars where missing and print their folder")
    return parser


def _rate(text: str) -> int:
    """Bytes a second from MB/s."""
    value = float(text)
    if not 0 <= value < 1e6:
        raise ValueError(text)
    return round(value * 1e6)


def _start(options: argparse.Namespace) -> None:
    spec = Spec(
        name=options.name,
        state=str(instance.state_folder(options.name, options.state)),
        datanodes=options.datanodes,
        rate=options.rate,
        block_size=parse_size(options.block_size),
        replication=options.replication,
        permissions=options.permissions,
        webhdfs=not options.no_webhdfs,
        standby=options.standby,
        properties=tuple(options.properties),
    )
    spec = instance.start(spec, _say)
    if options.json:
        _print_json(instance.describe(spec))
        return
    cap = f"{spec.rate / 1e6:g} MB/s each" if spec.rate else "no cap"
    print(
        f"{spec.url} with {spec.datanodes} DataNodes ({cap}) is up; web {spec.namenode.endpoint('http')}; "
        f"--hadoop-conf {spec.client_conf}; stop it with: ./scripts/hdfs-cluster stop{_flags(options)}"
    )


def _stop(options: argparse.Namespace) -> None:
    found = instance.stop(options.name, instance.state_folder(options.name, options.state))
    _say(f"{options.name} {'is stopped and removed' if found else 'was not there: nothing to stop'}")


def _status(options: argparse.Namespace) -> None:
    facts = instance.describe(instance.find_spec(options.name, options.state))
    if options.json:
        _print_json(facts)
        return
    print(f"{facts['url']}  web {facts['http']}  conf {facts['conf']}  {'ready' if facts['ready'] else 'not ready'}")
    for node in [facts["namenode"], *facts["standby"], *facts["datanodes"]]:
        live = "" if "live" not in node else "  live" if node["live"] else "  not live"
        address = node.get("rpc") or node.get("transfer")
        print(f"{node['node']:5} {node['state']:8} pid {node['pid'] or '-':<8} {address:22} http {node['http']}{live}")


def _to_nodes(options: argparse.Namespace) -> None:
    spec = instance.find_spec(options.name, options.state)
    nodes = [spec.node(name) for name in options.nodes]
    if options.command == "restart":
        instance.restart(spec, nodes, _say)
    else:
        {"kill": instance.kill, "pause": instance.pause, "resume": instance.resume}[options.command](spec, nodes)


def _safemode(options: argparse.Namespace) -> None:
    instance.set_safemode(instance.find_spec(options.name, options.state), on=options.wanted == "on")


def _active(options: argparse.Namespace) -> None:
    instance.set_active(instance.find_spec(options.name, options.state), options.node)


def _wait(options: argparse.Namespace) -> None:
    instance.await_ready(instance.find_spec(options.name, options.state), _say)


def _set_rate(options: argparse.Namespace) -> None:
    instance.set_rate(instance.find_spec(options.name, options.state), options.rate)


def _report_bytes(options: argparse.Namespace) -> None:
    _print_json(network.count_bytes(instance.find_spec(options.name, options.state)))


def _jars(_options: argparse.Namespace) -> None:
    print(ensure_jars())


_COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "start": _start,
    "stop": _stop,
    "status": _status,
    "kill": _to_nodes,
    "pause": _to_nodes,
    "resume": _to_nodes,
    "restart": _to_nodes,
    "safemode": _safemode,
    "active": _active,
    "rate": _set_rate,
    "report-bytes": _report_bytes,
    "wait": _wait,
    "jars": _jars,
}


def _check_machine(command: str) -> None:
    if command == "jars":
        return
    if os.geteuid() != 0 and command != "status":
        raise ClusterError(f"namespaces need root: sudo ./scripts/hdfs-cluster {command} …")
    for program, package in (("ip", "iproute2"), ("tc", "iproute2"), ("nsenter", "util-linux")):
        if shutil.which(program) is None:
            raise ClusterError(f"{program} is missing: apt-get install {package}")


def _flags(options: argparse.Namespace) -> str:
    name = "" if options.name == "default" else f" --name {options.name}"
    return name + (f" --state {options.state}" if options.state else "")


def _interrupt(number: int, _frame: FrameType | None) -> None:
    for other in _ENDING:
        signal.signal(other, signal.SIG_IGN)  # once is enough: cleaning up must not be cut short
    raise _Interrupted(number)


def _say(line: str) -> None:
    print(f"hdfs-cluster: {line}", file=sys.stderr)


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, indent=2))
