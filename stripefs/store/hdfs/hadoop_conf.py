"""From a URL, the settings and Hadoop's XML files to what a client must know: NameNodes, user and root.

The URL names a NameNode (`hdfs://host[:port]/root`), an HA nameservice that the XML files describe
(`hdfs://cluster/root`), or nothing (`hdfs:///root`: then `fs.defaultFS`). The XML files are core-site.xml and
hdfs-site.xml in `settings.hadoop_conf`, else in $HADOOP_CONF_DIR. As in every URL %XX in the root is a byte.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit
from xml.etree import ElementTree

from stripefs.errors import ConfigError
from stripefs.settings import StoreSettings, redact
from stripefs.store.hdfs.wire import host_port

__all__ = ["RPC_PORT", "WEB_PORT", "NameNode", "Target", "read_properties", "resolve"]

RPC_PORT = 8020  # Hadoop's defaults since 3.0 (hdfs-default.xml)
WEB_PORT = 9870
_FILES = ("core-site.xml", "hdfs-site.xml")
_REFERENCE = re.compile(r"\$\{([^}$\s]+)\}")
_NUMBER = re.compile(r"(\d+)([kmgt])?")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9._-]*\$?")  # as WebHDFS accepts it: hdfs-default.xml, dfs.webhdfs.user…pattern


@dataclass(frozen=True, slots=True)
class NameNode:
    """Addresses as host:port."""

    rpc: str
    web: str


@dataclass(frozen=True, slots=True)
class Target:
    """authority is what clients call the file system: host:port or the nameservice. root has no trailing slash.

    block_size in bytes and replication are those that new files get; 0 where the configuration says nothing.
    """

    authority: str
    namenodes: tuple[NameNode, ...]
    root: bytes
    user: str
    conf_dir: str
    block_size: int = 0
    replication: int = 0


def resolve(settings: StoreSettings, environ: Mapping[str, str]) -> Target:
    """The meaning of `settings.url`. Raises ConfigError."""
    parts = urlsplit(settings.url)
    if parts.scheme != "hdfs":
        raise ConfigError(f"{settings.url!r} is not an hdfs:// URL")
    conf_dir, properties = _configuration(settings, environ)
    authority = parts.netloc or _default_authority(settings.url, properties)
    namenodes = _namenodes(authority, properties, settings.webhdfs_port)
    # A ? or # and the text behind it are part of a name here: HDFS paths have no query.
    after = settings.url.partition("://")[2].removeprefix(parts.netloc)
    return Target(
        authority=authority if len(namenodes) > 1 or _is_service(authority, properties) else namenodes[0].rpc,
        namenodes=namenodes,
        root=_root(settings.url, unquote_to_bytes(after)),
        user=_user(settings, environ),
        conf_dir=conf_dir,
        block_size=_number(properties, "dfs.blocksize"),
        replication=_number(properties, "dfs.replication"),
    )


def read_properties(folder: Path) -> dict[str, str]:
    """The properties of core-site.xml and hdfs-site.xml in `folder`, ${references} replaced. Raises ConfigError."""
    properties: dict[str, str] = {}
    for name in _FILES:
        file = folder / name
        try:
            root = ElementTree.parse(file).getroot()  # noqa: S314 - the administrator's own file
        except FileNotFoundError:
            continue
        except (OSError, ElementTree.ParseError) as error:
            raise ConfigError(f"{file}: not a readable Hadoop configuration: {error}") from error
        for entry in root.iter("property"):
            key = (entry.findtext("name") or "").strip()
            if key:
                properties[key] = (entry.findtext("value") or "").strip()
    return {key: _expand(value, properties) for key, value in properties.items()}


def _number(properties: Mapping[str, str], key: str) -> int:
    """A whole number as Hadoop writes them, with k, m, g, t for powers of 1024; 0 where there is none."""
    text = properties.get(key, "").lower()
    match = _NUMBER.fullmatch(text)
    if text and match is None:
        raise ConfigError(f"{key} is {text!r} in the Hadoop configuration, which is no number")
    return int(match[1]) << 10 * " kmgt".index(match[2] or " ") if match else 0


def _expand(value: str, properties: Mapping[str, str]) -> str:
    for _ in range(20):  # as deep as Hadoop's own Configuration goes
        expanded = _REFERENCE.sub(lambda match: properties.get(match[1], match[0]), value)
        if expanded == value:
            break
        value = expanded
    return value


def _configuration(settings: StoreSettings, environ: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    if settings.hadoop_conf:
        folder = Path(settings.hadoop_conf)
        if not any((folder / name).is_file() for name in _FILES):
            raise ConfigError(
                f"{folder}: neither core-site.xml nor hdfs-site.xml is there",
                hint="--hadoop-conf names the folder that holds them",
            )
        return str(folder), read_properties(folder)
    if environ.get("HADOOP_CONF_DIR"):
        return environ["HADOOP_CONF_DIR"], read_properties(Path(environ["HADOOP_CONF_DIR"]))
    return "", {}


def _default_authority(url: str, properties: Mapping[str, str]) -> str:
    default = urlsplit(properties.get("fs.defaultFS", ""))
    if default.scheme != "hdfs" or not default.netloc:
        raise ConfigError(
            f"{url!r} names no NameNode and no fs.defaultFS is configured",
            hint="write hdfs://HOST:PORT/PATH or give --hadoop-conf DIR",
        )
    return default.netloc


def _is_service(authority: str, properties: Mapping[str, str]) -> bool:
    services = [name.strip() for name in properties.get("dfs.nameservices", "").split(",")]
    return authority in services or f"dfs.ha.namenodes.{authority}" in properties


def _namenodes(authority: str, properties: Mapping[str, str], web_port: int) -> tuple[NameNode, ...]:
    if not _is_service(authority, properties):
        return (_single(authority, properties, web_port),)
    names = [name.strip() for name in properties.get(f"dfs.ha.namenodes.{authority}", "").split(",") if name.strip()]
    found = []
    for suffix in [f".{authority}.{name}" for name in names] or [f".{authority}"]:
        rpc = properties.get(f"dfs.namenode.rpc-address{suffix}", "")
        if not rpc:
            raise ConfigError(f"the Hadoop configuration has no dfs.namenode.rpc-address{suffix}")
        host, port = _host_port(rpc, RPC_PORT)
        web = properties.get(f"dfs.namenode.http-address{suffix}", "")
        found.append(NameNode(host_port(host, port), _web(host, web, web_port)))
    return tuple(found)


def _single(authority: str, properties: Mapping[str, str], web_port: int) -> NameNode:
    host, port = _host_port(authority, RPC_PORT)
    configured = {_host_port(text, RPC_PORT) for text in _own_addresses(properties)}
    # The files may describe another cluster than the one in the URL; its web address is none of ours then.
    web = properties.get("dfs.namenode.http-address", "") if (host, port) in configured else ""
    return NameNode(host_port(host, port), _web(host, web, web_port))


def _own_addresses(properties: Mapping[str, str]) -> list[str]:
    default = urlsplit(properties.get("fs.defaultFS", "")).netloc
    return [text for text in (default, properties.get("dfs.namenode.rpc-address", "")) if text]


def _web(host: str, configured: str, port: int) -> str:
    if not configured:
        return host_port(host, port or WEB_PORT)
    web_host, web_port = _host_port(configured, WEB_PORT)
    wildcard = web_host in ("0.0.0.0", "::")  # noqa: S104 - read from a file, not bound
    return host_port(host if wildcard else web_host, port or web_port)


def _host_port(text: str, default: int) -> tuple[str, int]:
    parts: SplitResult = urlsplit(f"//{text}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{_shown(text)!r} is not HOST[:PORT]") from error
    if not host or parts.username is not None:
        hint = "--hdfs-user NAME says who reads" if parts.username else ""
        raise ConfigError(f"{_shown(text)!r} is not HOST[:PORT]", hint=hint)
    return host, port or default


def _shown(authority: str) -> str:
    """For messages: without a password."""
    return redact(f"hdfs://{authority}").removeprefix("hdfs://")


def _root(url: str, path: bytes) -> bytes:
    names = [name for name in path.split(b"/") if name]
    if b"." in names or b".." in names:
        raise ConfigError(f"{url!r}: . and .. have no meaning in HDFS")
    try:
        path.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{url!r}: HDFS names are UTF-8") from error
    return b"".join(b"/" + name for name in names)


def _user(settings: StoreSettings, environ: Mapping[str, str]) -> str:
    user = settings.hdfs_user or environ.get("HADOOP_USER_NAME", "")
    if not user:
        try:
            user = getpass.getuser()
        except (KeyError, OSError) as error:  # a container's uid without a passwd entry
            raise ConfigError("this process has no login name", hint="--hdfs-user NAME says who reads") from error
    if not _USER.fullmatch(user):
        raise ConfigError(f"{user!r} cannot be an HDFS user name", hint="--hdfs-user NAME says who reads")
    return user
