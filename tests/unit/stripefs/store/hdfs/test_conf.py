from __future__ import annotations

from pathlib import Path

import pytest

from stripefs.errors import ConfigError
from stripefs.settings import StoreSettings
from stripefs.store.hdfs.hadoop_conf import NameNode, Target, read_properties, resolve

HA = {
    "fs.defaultFS": "hdfs://lake",
    "dfs.nameservices": "lake,other",
    "dfs.ha.namenodes.lake": "nn1, nn2",
    "dfs.namenode.rpc-address.lake.nn1": "master1:9000",
    "dfs.namenode.http-address.lake.nn1": "0.0.0.0:50070",
    "dfs.namenode.rpc-address.lake.nn2": "master2",
}


def write_conf(folder: Path, properties: dict[str, str], name: str = "hdfs-site.xml") -> Path:
    entries = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in properties.items())
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"<?xml version='1.0'?><configuration>{entries}</configuration>")
    return folder


def meant(url: str, environ: dict[str, str] | None = None, **settings: object) -> Target:
    return resolve(StoreSettings(url=url, hdfs_user="me", **settings), environ or {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "rpc", "web", "root"),
    [
        ("hdfs://nn/data", "nn:8020", "nn:9870", b"/data"),
        ("hdfs://nn:9000", "nn:9000", "nn:9870", b""),
        ("hdfs://nn:9000/", "nn:9000", "nn:9870", b""),
        ("hdfs://nn//a///b/", "nn:8020", "nn:9870", b"/a/b"),
        ("hdfs://nn/a%20b%25/c?d#e", "nn:8020", "nn:9870", b"/a b%/c?d#e"),
        ("hdfs://[::1]:9000/a", "[::1]:9000", "[::1]:9870", b"/a"),
        ("hdfs://nn/gr%C3%BC%C3%9Fe", "nn:8020", "nn:9870", "/grüße".encode()),
    ],
)
def test_a_url_that_names_a_namenode(url: str, rpc: str, web: str, root: bytes) -> None:
    assert meant(url) == Target(rpc, (NameNode(rpc, web),), root, "me", "")


@pytest.mark.parametrize(
    "url",
    [
        "s3://nn/a",
        "hdfs:///a",
        "hdfs://nn:port/a",
        "hdfs://me@nn/a",
        "hdfs://nn/a/../b",
        "hdfs://nn/%FF",
        "hdfs://:8020/a",
    ],
)
def test_urls_that_mean_nothing(url: str) -> None:
    with pytest.raises(ConfigError):
        meant(url)


def test_a_nameservice(tmp_path: Path) -> None:
    folder = write_conf(tmp_path / "conf", HA)
    target = meant("hdfs://lake/x", hadoop_conf=str(folder))
    assert target.authority == "lake"
    assert target.namenodes == (NameNode("master1:9000", "master1:50070"), NameNode("master2:8020", "master2:9870"))
    assert target.conf_dir == str(folder)
    assert meant("hdfs:///x", {"HADOOP_CONF_DIR": str(folder)}) == target
    assert [node.web for node in meant("hdfs://lake/x", hadoop_conf=str(folder), webhdfs_port=81).namenodes] == [
        "master1:81",
        "master2:81",
    ]
    write_conf(tmp_path / "conf", {"dfs.nameservices": "lake", "dfs.ha.namenodes.lake": "nn1"})
    with pytest.raises(ConfigError, match=r"dfs\.namenode\.rpc-address\.lake\.nn1"):
        meant("hdfs://lake/x", hadoop_conf=str(folder))


def test_the_web_address_is_taken_for_the_configured_cluster_only(tmp_path: Path) -> None:
    write_conf(tmp_path, {"fs.defaultFS": "hdfs://nn:9000"}, "core-site.xml")
    folder = write_conf(tmp_path, {"dfs.namenode.http-address": "web:8080"})
    assert meant("hdfs://nn:9000/x", hadoop_conf=str(folder)).namenodes == (NameNode("nn:9000", "web:8080"),)
    assert meant("hdfs:///x", hadoop_conf=str(folder)).namenodes == (NameNode("nn:9000", "web:8080"),)
    assert meant("hdfs://elsewhere/x", hadoop_conf=str(folder)).namenodes[0].web == "elsewhere:9870"


def test_references_between_properties(tmp_path: Path) -> None:
    write_conf(tmp_path, {"host": "nn", "port": "90${two}", "two": "00", "loop": "${loop}", "none": "${env.X}"})
    write_conf(tmp_path, {"fs.defaultFS": "hdfs://${host}:${port}"}, "core-site.xml")
    properties = read_properties(tmp_path)
    assert properties["fs.defaultFS"] == "hdfs://nn:9000"
    assert (properties["loop"], properties["none"]) == ("${loop}", "${env.X}")


def test_configuration_that_cannot_be_read(tmp_path: Path) -> None:
    assert meant("hdfs://nn/", {"HADOOP_CONF_DIR": str(tmp_path)}).authority == "nn:8020"  # empty, but not asked for
    with pytest.raises(ConfigError, match="neither"):
        meant("hdfs://nn/", hadoop_conf=str(tmp_path))
    (tmp_path / "core-site.xml").write_text("<configuration>")
    with pytest.raises(ConfigError, match=r"core-site\.xml"):
        meant("hdfs://nn/", hadoop_conf=str(tmp_path))


@pytest.mark.parametrize(("text", "size"), [("134217728", 1 << 27), ("1g", 1 << 30), ("8M", 8 << 20), ("", 0)])
def test_sizes_as_hadoop_writes_them(tmp_path: Path, text: str, size: int) -> None:
    folder = write_conf(tmp_path, {"dfs.blocksize": text, "dfs.replication": "2"})
    target = meant("hdfs://nn/", hadoop_conf=str(folder))
    assert (target.block_size, target.replication) == (size, 2)
    write_conf(tmp_path, {"dfs.blocksize": "large"})
    with pytest.raises(ConfigError, match=r"dfs\.blocksize"):
        meant("hdfs://nn/", hadoop_conf=str(folder))


def test_the_user() -> None:
    def user(environ: dict[str, str], given: str = "") -> str:
        return resolve(StoreSettings(url="hdfs://nn/", hdfs_user=given), environ).user

    assert user({"HADOOP_USER_NAME": "hadoop"}, "given") == "given"
    assert user({"HADOOP_USER_NAME": "hadoop"}) == "hadoop"
    assert user({})
    with pytest.raises(ConfigError, match="user"):
        user({}, "two words")
