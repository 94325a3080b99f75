"""An instance as plain values: its nodes, their addresses and ports, and the site files they read.

An instance owns 198.18.0.0/24 + 256 * subnet, out of the range that RFC 2544 sets apart for test networks. It is cut
into links of four addresses: link 0 joins the host (.1) and the NameNode (.2), link i joins the NameNode's namespace,
which routes, (.4i+1) and DataNode i (.4i+2); the link behind the last DataNode's is the standby NameNode's. Ports
differ from DataNode to DataNode, so that a client that guesses one from another is found out.
"""

from __future__ import annotations

import dataclasses
import json
import re
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from xml.sax.saxutils import escape

from hdfscluster.errors import ClusterError

__all__ = [
    "MAX_DATANODES",
    "NAMENODE",
    "STANDBY",
    "SUBNETS",
    "Node",
    "Spec",
    "load_spec",
    "parse_size",
    "write_site_files",
]

NAMENODE = "nn"
STANDBY = "nn2"
MAX_DATANODES = 62  # links of four addresses in a /24, less the NameNode's
SUBNETS = tuple(IPv4Network("198.18.0.0/15").subnets(new_prefix=24))

_SERVICE = "pair"
"""The name under which clients know two NameNodes."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_SIZE = re.compile(r"([0-9]+)\s*(|[KMG]iB|[KMG])", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3}


@dataclass(frozen=True, slots=True)
class Node:
    """One JVM. `ports` are those it listens on, by purpose: rpc and http, or transfer, http and ipc."""

    name: str
    namespace: str
    address: str
    gateway: str
    ports: dict[str, int]

    def endpoint(self, purpose: str) -> str:
        return f"{self.address}:{self.ports[purpose]}"


@dataclass(frozen=True, slots=True)
class Spec:
    """All that `start` was asked for. rate in bytes a second for one DataNode and direction, 0 for no limit.

    standby: a second NameNode shares the edits of the first, and takes over when it is told to. properties: KEY=VALUE,
    for the site files of all nodes and of clients, over what the instance sets itself.
    """

    name: str = "default"
    state: str = ""
    subnet: int = 0
    datanodes: int = 8
    rate: int = 40_000_000
    block_size: int = 8 << 20
    replication: int = 1
    permissions: bool = False
    webhdfs: bool = True
    standby: bool = False
    properties: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ClusterError(f"{self.name!r} cannot name an instance: use up to 40 letters, digits, '.', '_' and '-'")
        most = MAX_DATANODES - self.standby
        if not 1 <= self.datanodes <= most:
            raise ClusterError(f"--datanodes must be 1 to {most}, not {self.datanodes}")
        if not 1 <= self.replication <= self.datanodes:
            raise ClusterError(f"--replication must be 1 to --datanodes ({self.datanodes}), not {self.replication}")
        if self.block_size < 4096 or self.block_size % 512:
            raise ClusterError("--block-size must be at least 4 KiB and a multiple of 512 bytes")
        if self.rate < 0:
            raise ClusterError("--rate must not be negative; 0 means no limit")
        for each in self.properties:
            if not each.partition("=")[0].strip() or "=" not in each:
                raise ClusterError(f"--set takes KEY=VALUE, not {each!r}")

    @property
    def folder(self) -> Path:
        return Path(self.state)

    @property
    def network(self) -> IPv4Network:
        return SUBNETS[self.subnet]

    @property
    def host_link(self) -> str:
        """The one interface that the instance adds to the host."""
        return f"hdfs{self.subnet}"

    @property
    def host_address(self) -> str:
        return str(self._at(1))

    @property
    def namenode(self) -> Node:
        ports = {"rpc": 8020, "http": 9870}
        return Node(NAMENODE, f"hdfs-{self.name}-{NAMENODE}", str(self._at(2)), self.host_address, ports)

    @property
    def name_nodes(self) -> list[Node]:
        """The NameNode, and the standby."""
        standby = self._linked(STANDBY, self.datanodes + 1, {"rpc": 8021, "http": 9871})
        return [self.namenode, *[standby] * self.standby]

    def datanode(self, number: int) -> Node:
        """DataNode `number`, counted from 1."""
        ports = {"transfer": 9900 + number, "http": 10000 + number, "ipc": 10100 + number}
        return self._linked(f"dn{number}", number, ports)

    @property
    def data_nodes(self) -> list[Node]:
        return [self.datanode(number) for number in range(1, self.datanodes + 1)]

    @property
    def nodes(self) -> list[Node]:
        return [*self.name_nodes, *self.data_nodes]

    def node(self, name: str) -> Node:
        for node in self.nodes:
            if node.name == name:
                return node
        raise ClusterError(f"{self.name} has no node {name!r}: use nn or dn1 to dn{self.datanodes}")

    def web_host(self, node: Node) -> str:
        """The address on which the node's web server listens.

        Hadoop 3 has no switch for WebHDFS. A site without WebHDFS has web ports that cannot be reached: so they are
        bound to the loopback address of the node's own namespace.
        """
        return node.address if self.webhdfs else "127.0.0.1"

    @property
    def url(self) -> str:
        return f"hdfs://{_SERVICE}" if self.standby else f"hdfs://{self.namenode.endpoint('rpc')}"

    @property
    def client_conf(self) -> Path:
        return self.folder / "client"

    def conf(self, node: Node) -> Path:
        return self.folder / "conf" / node.name

    def log(self, node: Node) -> Path:
        return self.folder / f"{node.name}.log"

    def save(self) -> None:
        (self.folder / "spec.json").write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n")

    def _linked(self, name: str, link: int, ports: dict[str, int]) -> Node:
        base = 4 * link
        return Node(name, f"hdfs-{self.name}-{name}", str(self._at(base + 2)), str(self._at(base + 1)), ports)

    def _at(self, offset: int) -> IPv4Address:
        return self.network[offset]


def load_spec(folder: Path) -> Spec | None:
    """The spec that `start` left in `folder`, None where there is no readable one."""
    try:
        facts = json.loads((folder / "spec.json").read_text())
        return Spec(**facts | {"properties": tuple(facts["properties"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def parse_size(text: str) -> int:
    """Bytes from `8MiB`, `8M` or `8388608`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ClusterError(f"{text!r} is not a size such as 8MiB or 8388608")
    return int(match[1]) << (10 * _POWER[match[2][:1].lower()])


def write_site_files(spec: Spec) -> None:
    """The configuration folder of every node and the one for clients, plus what all nodes share."""
    chosen: Site = {key: value for key, _, value in (each.partition("=") for each in spec.properties)}
    for node in spec.nodes:
        own = _namenode_site(spec, node) if node in spec.name_nodes else _datanode_site(spec, node)
        folder = spec.conf(node)
        folder.mkdir(parents=True)
        _write_site(folder / "core-site.xml", _core_site(spec) | {"hadoop.tmp.dir": f"{spec.folder}/tmp"} | chosen)
        _write_site(folder / "hdfs-site.xml", _common_site(spec) | own | chosen)
        (folder / "log4j.properties").write_text(_LOGGING)
        # JMX shows counters as old as this, in seconds; the default is 10.
        (folder / "hadoop-metrics2.properties").write_text("*.period=1\n")
    spec.client_conf.mkdir()
    _write_site(spec.client_conf / "core-site.xml", _core_site(spec) | chosen)
    _write_site(spec.client_conf / "hdfs-site.xml", _client_site(spec) | chosen)
    # Without this file the JVMs ask a name server for every address, which a namespace cannot reach: 30 s stalls.
    hosts = ["127.0.0.1 localhost", f"127.0.0.1 {socket.gethostname()}", f"{spec.host_address} client.{spec.name}.hdfs"]
    hosts += [f"{node.address} {node.name}.{spec.name}.hdfs" for node in spec.nodes]
    (spec.folder / "hosts").write_text("\n".join(hosts) + "\n")
    # The web servers refuse to start without these folders, which the jars from Maven do not hold.
    for app in ("hdfs", "datanode", "static"):
        folder = spec.folder / "web" / "webapps" / app / "WEB-INF"
        folder.mkdir(parents=True)
        (folder / "web.xml").write_text("<web-app/>\n")


Site = dict[str, str | int]


def _core_site(spec: Spec) -> Site:
    return {"fs.defaultFS": spec.url}


def _client_site(spec: Spec) -> Site:
    return {
        "dfs.replication": spec.replication,
        "dfs.blocksize": spec.block_size,
        **_namenode_addresses(spec),
        # Two or three DataNodes leave no spare for a broken pipeline: appending goes on with those that are left.
        "dfs.client.block.write.replace-datanode-on-failure.best-effort": "true",
    }


def _namenode_addresses(spec: Spec) -> Site:
    if not spec.standby:
        return {
            "dfs.namenode.rpc-address": spec.namenode.endpoint("rpc"),
            "dfs.namenode.http-address": spec.namenode.endpoint("http"),
        }
    proxies = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
    site: Site = {
        "dfs.nameservices": _SERVICE,
        f"dfs.ha.namenodes.{_SERVICE}": ",".join(node.name for node in spec.name_nodes),
        f"dfs.client.failover.proxy.provider.{_SERVICE}": proxies,
        "ha.failover-controller.cli-check.rpc-timeout.ms": 60_000,
    }
    for node in spec.name_nodes:
        site[f"dfs.namenode.rpc-address.{_SERVICE}.{node.name}"] = node.endpoint("rpc")
        site[f"dfs.namenode.http-address.{_SERVICE}.{node.name}"] = node.endpoint("http")
    return site


def _common_site(spec: Spec) -> Site:
    return _client_site(spec) | {
        "dfs.permissions.enabled": _flag(spec.permissions),
        "dfs.heartbeat.interval": 1,
    }


def _namenode_site(spec: Spec, node: Node) -> Site:
    shared: Site = {
        "dfs.ha.namenode.id": node.name,
        "dfs.namenode.shared.edits.dir": f"file://{spec.folder}/edits",
        "dfs.ha.fencing.methods": "shell(/bin/true)",  # a NameNode that is to be away is killed
        "dfs.ha.tail-edits.period": 1,
    }
    return {
        **(shared if spec.standby else {}),
        "dfs.namenode.http-bind-host": spec.web_host(node),
        "dfs.namenode.name.dir": f"file://{spec.folder}/{node.name}",
        "dfs.namenode.fs-limits.min-block-size": 4096,
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.namenode.safemode.extension": 0,
        # A DataNode counts as dead after 2 * this + 10 heartbeats: 20 s instead of 10 min.
        "dfs.namenode.heartbeat.recheck-interval": 5000,
    }


def _datanode_site(spec: Spec, node: Node) -> Site:
    return {
        "dfs.datanode.data.dir": f"file://{spec.folder}/{node.name}",
        "dfs.datanode.address": node.endpoint("transfer"),
        "dfs.datanode.http.address": f"{spec.web_host(node)}:{node.ports['http']}",
        "dfs.datanode.ipc.address": node.endpoint("ipc"),
        "dfs.datanode.hostname": node.address,
        "dfs.datanode.max.transfer.threads": 4096,
        # A DataNode that starts before the NameNode listens asks again at once instead of every second.
        "ipc.client.connect.retry.interval": 200,
        "ipc.client.connect.max.retries": 100,
        # Nothing rots during a test, and scanning takes the disk and CPU that are being measured.
        "dfs.block.scanner.volume.bytes.per.second": 0,
        "dfs.datanode.directoryscan.interval": -1,
    }


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _write_site(file: Path, site: Site) -> None:
    rows = [
        f"  <property><name>{escape(key)}</name><value>{escape(str(value))}</value></property>"
        for key, value in site.items()
    ]
    file.write_text("\n".join(["<configuration>", *rows, "</configuration>", ""]))


# A line for each block and request would cost more than the work it tells of.
_LOGGING = """\
log4j.rootLogger=INFO,A
log4j.appender.A=org.apache.log4j.ConsoleAppender
log4j.appender.A.layout=org.apache.log4j.PatternLayout
log4j.appender.A.layout.ConversionPattern=%d{HH:mm:ss.SSS} %p %c{1}: %m%n
log4j.logger.org.apache.hadoop.hdfs.server.namenode.FSNamesystem.audit=WARN
log4j.logger.org.apache.hadoop.hdfs.server.datanode.DataNode.clienttrace=WARN
log4j.logger.datanode.webhdfs=WARN
log4j.logger.BlockStateChange=WARN
"""
