"""A NameNode and DataNodes of a few lines on loopback, for the faults that a real cluster cannot be told to show.

The NameNode knows one directory with one file of one block. Each DataNode serves it in a `manner`, a function of the
request handler and the bytes asked for.
"""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from stripefs.settings import StoreSettings
from stripefs.store.hdfs.store import HdfsStore
from tests.tools.listening import free_port, http_server

__all__ = [
    "DATA", "FILE_ID", "TIMEOUT", "FakeCluster", "FakeDataNode", "FakeNameNode", "Manner", "Request", "closed_port",
    "good", "missing_block", "no_http", "running", "serving", "settings_for",
]  # fmt: skip

DATA = random.Random(3).randbytes(3 << 20)  # the bytes of the file
TIMEOUT = 0.5  # long enough for a busy machine to answer, short enough to wait for
FILE_ID = 4711
DIRECTORY_ID = 16385


class Request(BaseHTTPRequestHandler):
    """One request; `operation`, `path` and `query` are taken apart."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.query = {key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        self.operation = self.query.get("op", "")
        self.file = unquote(parts.path).removeprefix("/webhdfs/v1")
        self.server.fake.serve(self)  # type: ignore[attr-defined]  # set by serving()

    do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - http.server's names

    def answer(self, status: int, body: bytes, kind: str = "application/json", length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def document(self, document: Any, status: int = 200) -> None:
        self.answer(status, json.dumps(document).encode())

    def refuse(self, exception: str, message: str, status: int = 403) -> None:
        document = {"exception": exception.rpartition(".")[2], "javaClassName": exception, "message": message}
        self.document({"RemoteException": document}, status)

    def reset(self) -> None:
        """Close so that the peer sees a reset instead of an end."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        pass


Manner = Callable[[Request, bytes], None]


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that break off are what these tests are about


class FakeNameNode:
    """`refusal` (exception, message) makes it refuse everything; `operations` may replace single answers."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.mtime = 1_700_000_000_000
        self.exists = True
        self.refusal: tuple[str, str] | None = None
        self.replicas: list[dict[str, Any]] = []
        self.operations: dict[str, Callable[[Request], None]] = {}
        self.asked: list[str] = []
        self.address = ""

    def serve(self, request: Request) -> None:
        self.asked.append(request.operation or request.file)
        if self.refusal is not None:
            request.refuse(*self.refusal)
        elif request.operation in self.operations:
            self.operations[request.operation](request)
        else:
            self._serve(request)

    def _serve(self, request: Request) -> None:
        is_file = request.file in ("/file", f"/.reserved/.inodes/{FILE_ID}")
        if is_file and not self.exists:
            request.refuse("java.io.FileNotFoundException", f"File does not exist: {request.file}", 404)
        elif request.operation == "GETFILESTATUS" and is_file:
            request.document({"FileStatus": self.status()})
        elif request.operation == "GETFILESTATUS" and request.file in ("/", f"/.reserved/.inodes/{DIRECTORY_ID}"):
            request.document({"FileStatus": self.status() | {"type": "DIRECTORY", "fileId": DIRECTORY_ID}})
        elif request.operation == "GET_BLOCK_LOCATIONS" and is_file:
            block = {"startOffset": 0, "block": {"numBytes": len(self.data)}, "locations": self.replicas}
            request.document({"LocatedBlocks": {"locatedBlocks": [block]}})
        elif request.operation == "OPEN" and request.query.get("noredirect") == "true":
            request.document({"Location": "http://dn:1/webhdfs/v1/x?op=OPEN&namenoderpcaddress=logical:8020"})
        elif request.operation:
            message = f'Invalid value for webhdfs parameter "op": {request.operation} is not a valid GET operation.'
            request.refuse("java.lang.IllegalArgumentException", message, 400)
        else:
            request.answer(404, b"nothing here", "text/html")

    def status(self) -> dict[str, Any]:
        return {
            "accessTime": self.mtime,
            "blockSize": 1 << 20,
            "fileId": FILE_ID,
            "group": "g",
            "length": len(self.data),
            "modificationTime": self.mtime,
            "owner": "o",
            "pathSuffix": "",
            "permission": "644",
            "replication": 1,
            "type": "FILE",
        }


class FakeDataNode:
    """Its transfer port has nothing to do with its web port. `served` are the queries of its requests."""

    def __init__(self, number: int, data: bytes, manner: Manner) -> None:
        self.name = f"127.0.0.1:{9000 + number}"
        self.data = data
        self.manner = manner
        self.served: list[dict[str, str]] = []
        self.address = ""

    def serve(self, request: Request) -> None:
        self.served.append(request.query)
        offset, length = int(request.query["offset"]), int(request.query["length"])
        request.close_connection = True
        self.manner(request, self.data[offset : offset + length])

    def replica(self) -> dict[str, Any]:
        host, _, port = self.address.rpartition(":")
        return {"name": self.name, "ipAddr": host, "hostName": "localhost", "infoPort": int(port)}


class FakeCluster:
    def __init__(self, namenode: FakeNameNode, datanodes: list[FakeDataNode]) -> None:
        self.namenode = namenode
        self.datanodes = datanodes

    @classmethod
    @contextmanager
    def running(cls, data: bytes, *manners: Manner) -> Iterator[FakeCluster]:
        namenode = FakeNameNode(data)
        datanodes = [FakeDataNode(number, data, manner) for number, manner in enumerate(manners)]
        with serving(namenode, *datanodes):
            namenode.replicas = [datanode.replica() for datanode in datanodes]
            yield cls(namenode, datanodes)


@contextmanager
def serving(*fakes: FakeNameNode | FakeDataNode) -> Iterator[None]:
    """Give each fake a server on a port of its own, its `address`, until the block ends."""
    with ExitStack() as stack:
        for fake in fakes:
            server = stack.enter_context(http_server(Request, _Server))
            server.fake = fake  # type: ignore[attr-defined]  # Request finds it here
            fake.address = f"127.0.0.1:{server.server_port}"
        yield


def closed_port() -> str:
    """An address on loopback where nothing listens."""
    return f"127.0.0.1:{free_port()}"


def good(request: Request, wanted: bytes) -> None:
    request.answer(200, wanted, "application/octet-stream")


def no_http(request: Request, wanted: bytes) -> None:
    request.wfile.write(b"\x00\x01\x02 nothing that looks like an answer\r\n\r\n")


def missing_block(request: Request, wanted: bytes) -> None:
    request.refuse("org.apache.hadoop.hdfs.BlockMissingException", "Could not obtain block: BP-1:blk_1")


def settings_for(cluster: FakeCluster | FakeNameNode, **more: object) -> StoreSettings:
    namenode = cluster.namenode if isinstance(cluster, FakeCluster) else cluster
    port = int(namenode.address.rpartition(":")[2])
    values: dict[str, object] = {
        "url": "hdfs://127.0.0.1:8020/",
        "transport": "webhdfs",
        "webhdfs_port": port,
        "hdfs_user": "me",
        "host_timeout": TIMEOUT,
    }
    return StoreSettings(**(values | more))  # type: ignore[arg-type]


@contextmanager
def running(*manners: Manner, host_timeout: float = TIMEOUT) -> Iterator[tuple[FakeCluster, HdfsStore]]:
    """A cluster with one DataNode for each manner, and the store that is it."""
    with (
        FakeCluster.running(DATA, *manners) as cluster,
        closing(HdfsStore(settings_for(cluster, host_timeout=host_timeout))) as store,
    ):
        yield cluster, store
