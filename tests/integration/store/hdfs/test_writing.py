"""Requests of the writing half of the HDFS store, by service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stripefs.errors import StoreError, Unsupported
from stripefs.store.hdfs.store import HdfsStore
from tests.tools.fake_hdfs import FakeCluster, FakeNameNode, Request, good, running, settings_for

SITE = """<configuration>
<property><name>dfs.blocksize</name><value>{size}</value></property>
<property><name>dfs.replication</name><value>2</value></property>
</configuration>"""


def site(folder: Path, size: str) -> str:
    (folder / "hdfs-site.xml").write_text(SITE.format(size=size))
    return str(folder)


class Taking:
    """Makes the fakes take a file: the NameNode sends everybody to itself, where nothing but the query is noted."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.queries: list[dict[str, str]] = []
        self._namenode: FakeNameNode = cluster.namenode
        node = cluster.datanodes[0]
        self._live = {
            "localhost:9864": {
                "infoAddr": f"{self._namenode.address}",
                "xferaddr": node.name,
                "adminState": "In Service",
            }
        }
        self._namenode.operations |= {
            "CREATE": self._create,
            "GETFILESTATUS": self._status,
            "": self._jmx,
            "GETSERVERDEFAULTS": lambda request: request.document(
                {"FsServerDefaults": {"blockSize": 134217728, "replication": 3}}
            ),
        }

    def _create(self, request: Request) -> None:
        if request.query.get("noredirect"):
            request.document({"Location": "http://dn/webhdfs/v1/new?op=CREATE&namenoderpcaddress=logical:8020"})
            return
        self.queries.append(request.query)
        request.close_connection = True
        request.refuse("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "enough")

    def _status(self, request: Request) -> None:
        if request.file == "/new":
            request.refuse("java.io.FileNotFoundException", "File does not exist: /new", 404)
        else:
            self._namenode._serve(request)

    def _jmx(self, request: Request) -> None:
        request.document({"beans": [{"LiveNodes": json.dumps(self._live)}]})


def create(store: HdfsStore, **how: int) -> None:
    sink = store.create(b"/new", host=store.hosts()[0].name, length=0, **how)
    with pytest.raises(StoreError, match="enough"):
        sink.close()
    sink.abort()


def test_a_placed_file_is_made_as_the_clients_configuration_says(tmp_path: Path) -> None:
    with FakeCluster.running(b"x", good) as cluster:
        store = HdfsStore(settings_for(cluster, hadoop_conf=site(tmp_path, "64m")))
        taking = Taking(cluster)
        create(store)
        create(store, block_size=1052672, replication=1)
        store.close()
    assert [(query["blocksize"], query["replication"]) for query in taking.queries] == [
        (str(64 << 20), "2"),
        ("1052672", "1"),
    ]
    assert taking.queries[0]["namenoderpcaddress"] == "logical:8020"
    assert (taking.queries[0]["overwrite"], taking.queries[0]["createparent"]) == ("false", "false")


def test_without_one_the_namenodes_defaults_hold() -> None:
    with running(good) as (cluster, store):
        taking = Taking(cluster)
        create(store)
        create(store, replication=1)
        assert cluster.namenode.asked.count("GETSERVERDEFAULTS") == 1
    assert [(query["blocksize"], query["replication"]) for query in taking.queries] == [
        ("134217728", "3"),
        ("134217728", "1"),
    ]


def test_a_namenode_that_tells_no_defaults() -> None:
    with running(good) as (cluster, store):
        taking = Taking(cluster)
        del cluster.namenode.operations["GETSERVERDEFAULTS"]
        create(store)
    assert "blocksize" not in taking.queries[0]


def test_a_store_without_webhdfs_to_datanodes_refuses_by_name() -> None:
    with running(good) as (cluster, store):
        Taking(cluster)
        store._writer._datanodes = None
        with pytest.raises(Unsupported, match="WebHDFS"):
            store.create(b"/new", host="dn")
