"""Small documents go to one DataNode by WebHDFS, everything else and what fails there to hdfs-native."""

from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest

from stripefs.errors import Exists, HostFailed, NotFound, QuotaExceeded, ServiceDown, StoreError
from stripefs.retry import HostHealth
from stripefs.store.base import Host, Kind, Sink, Status
from stripefs.store.hdfs import writer as hdfs_writer
from stripefs.store.hdfs.datanode_write import PATIENCE

MIB = 1 << 20


class Cluster:
    """A NameNode and two DataNodes of plain dictionaries; `down` fail, `refusal` is what DataNodes say to all."""

    def __init__(self):
        self.files = {}
        self.folders = {"", "/a"}
        self.down = set()
        self.refusal = None
        self.tried = []
        self.by_native = []
        self.attributes = {}
        self.attribute_error = None
        self.shape = None

    # as `NameNodeRest`

    def set_attribute(self, path, name, value):
        if self.attribute_error is not None:
            raise self.attribute_error
        assert path in self.files
        self.attributes[path] = (name, value)

    def defaults(self):
        return self.shape

    def rpc_address(self, ask):
        return "namenode:8020"

    def change(self, method, operation, path, **parameters):
        if operation == "DELETE":
            return {"boolean": self.files.pop(path, None) is not None}
        if operation == "MKDIRS":
            self.folders.add(path)
            return {"boolean": True}
        assert (method, operation) == ("PUT", "RENAME")
        target = parameters["destination"]
        if parameters["renameoptions"] == "NONE" and target in self.files:
            raise Exists(f"{target} exists already")
        self.files[target] = self.files.pop(path)
        if path in self.attributes:
            self.attributes[target] = self.attributes.pop(path)
        return {}

    # as `DataNodes`

    def known(self):
        return [Host("dn1"), Host("dn2"), Host("gone", live=False)]

    def address(self, name):
        return f"{name}:9864"

    # as `NativeClient`

    def create_empty(self, path):
        if path.rpartition("/")[0] not in self.folders:
            raise NotFound(path)
        self.files[path] = b""

    def put(self, path, data, *, replace):
        self.by_native.append((path, b"".join(data), replace))

    def stat(self, path):
        if path not in self.files:
            raise NotFound(path)
        return Status(path.rpartition("/")[2].encode(), Kind.FILE, len(self.files[path]), file_id=str(id(path)))

    def sink(self, address, target, path, *, name, patience, discard, **_):
        """As `DataNodeSink`."""
        assert patience == (PATIENCE if path == "/placed" else 1)
        self.tried.append((name, target, path))
        self.discard = discard
        if name in self.down:
            raise HostFailed(f"{name} is down", host=name)
        return Placed(self, path)


class Placed(Sink):
    def __init__(self, cluster, path):
        self.cluster, self.path, self.pieces = cluster, path, []

    def write(self, data):
        self.pieces.append(data)

    def close(self):
        if self.cluster.refusal:
            raise self.cluster.refusal
        if self.path.rpartition("/")[0] not in self.cluster.folders:
            raise NotFound(self.path)
        self.cluster.files[self.path] = b"".join(self.pieces)
        return self.cluster.stat(self.path)

    def abort(self):
        self.cluster.files.pop(self.path, None)


@pytest.fixture
def cluster(monkeypatch):
    made = Cluster()
    monkeypatch.setattr(hdfs_writer, "DataNodeSink", made.sink)
    return made


def writer_of(cluster, *, native=True, shape=(0, 0)):
    return hdfs_writer.HdfsWriter(
        cluster,
        cluster if native else None,
        cluster,
        cluster.stat,
        target=SimpleNamespace(root=b"/", user="somebody", block_size=shape[0], replication=shape[1]),
        health=HostHealth(),
        timeout=1.0,
    )


def test_a_directory_is_made_at_the_namenode_and_by_no_datanode(cluster):
    """A DataNode may answer late, when the directory has been removed for good."""
    writer_of(cluster).put("/new/lock", [b"some"], replace=False)
    assert cluster.files == {"/new/lock": b"some"}
    assert "/new" in cluster.folders
    assert all("createparent=false" in target for _name, target, _path in cluster.tried)


@pytest.mark.parametrize("data", [[b"some"], []])
def test_a_directory_that_is_not_to_be_made_is_not(cluster, data):
    with pytest.raises(NotFound):
        writer_of(cluster).put("/new/lock", data, replace=False, parents=False)
    assert "/new" not in cluster.folders
    assert cluster.by_native == []


def test_an_empty_document_needs_no_datanode(cluster):
    writer_of(cluster).put("/lock", [], replace=False)
    assert cluster.by_native == [("/lock", b"", False)]
    assert cluster.tried == []
    writer_of(cluster, native=False).put("/lock", [], replace=False)
    assert cluster.files == {"/lock": b""}


def test_what_is_there_stays_unless_it_is_to_be_replaced(cluster):
    writer = writer_of(cluster)
    status = writer.put("/lock", [b"first"], replace=False)
    assert (status.name, status.length, status.file_id != "") == (b"lock", 5, True)
    [(name, _target, path)] = cluster.tried
    assert name in ("dn1", "dn2")
    assert path.startswith("/.lock.")
    with pytest.raises(Exists):
        writer.put("/lock", [b"second"], replace=False)
    assert cluster.files == {"/lock": b"first"}
    writer.put("/lock", [b"third"], replace=True)
    assert cluster.files == {"/lock": b"third"}
    assert cluster.by_native == []


def test_a_long_file_goes_by_hdfs_native(cluster):
    writer_of(cluster).put("/long", [bytes(MIB), b"x"], replace=True)
    assert cluster.by_native == [("/long", bytes(MIB) + b"x", True)]
    assert cluster.tried == []


def test_a_datanode_that_failed_is_left_alone_for_a_while(cluster):
    writer = writer_of(cluster)
    cluster.down = {"dn1"}
    for number in range(50):
        writer.put(f"/{number}", [b"x"], replace=False)
    assert len([name for name, *_ in cluster.tried if name == "dn1"]) <= 1
    assert len(cluster.files) == 50 - len(cluster.by_native)
    assert len(cluster.by_native) <= 1


def test_a_datanode_that_was_held_up_by_another_one_is_not_blamed(cluster, monkeypatch):
    """It gets the next document as well as any other."""
    refusing, sink = [], cluster.sink

    def passing_on(*arguments, name, **how):
        if not refusing:
            refusing.append(name)
            raise HostFailed("waits for another", host="gone", stalled=True)
        return sink(*arguments, name=name, **how)

    monkeypatch.setattr(hdfs_writer, "DataNodeSink", passing_on)
    writer = writer_of(cluster)
    for number in range(50):
        writer.put(f"/{number}", [b"x"], replace=False)
    assert refusing[0] in {name for name, *_ in cluster.tried}
    assert len(cluster.files) == 50


def test_where_datanodes_fail_hdfs_native_writes_it(cluster):
    cluster.down = {"dn1", "dn2"}
    writer_of(cluster).put("/lock", [b"x"], replace=False)
    assert cluster.by_native == [("/lock", b"x", False)]
    assert sorted(name for name, *_ in cluster.tried) == ["dn1", "dn2"]
    with pytest.raises(HostFailed, match="is down"):
        writer_of(cluster, native=False).put("/lock", [b"x"], replace=False)


def test_what_speaks_against_the_document_is_told_and_leaves_nothing(cluster):
    cluster.refusal = QuotaExceeded("enough")
    with pytest.raises(QuotaExceeded, match="enough"):
        writer_of(cluster).put("/lock", [b"x"], replace=False)
    assert cluster.files == {}
    assert cluster.by_native == []
    assert len(cluster.tried) == 1


@pytest.mark.parametrize("long", [False, True])
def test_the_text_is_the_content_where_it_cannot_be_an_attribute(cluster, long):
    cluster.attribute_error = StoreError("support for extended attributes is disabled")
    writer, text = writer_of(cluster), b"x" * 9000 if long else b"text"
    for path in ("/a/one", "/a/two"):
        assert writer.put_document(path, text).length == len(text)
    assert cluster.files == {"/a/one": text, "/a/two": text}
    assert writer_of(cluster, native=False).put_document("/a/three", b"text").length == 4


@pytest.mark.parametrize("error", [ServiceDown("away"), NotFound("moved away")])
def test_a_text_that_does_not_arrive_leaves_nothing(cluster, error):
    cluster.attribute_error = error
    writer = writer_of(cluster)
    with pytest.raises(type(error)):
        writer.put_document("/a/lock", b"text")
    assert cluster.files == {}
    cluster.attribute_error = None
    status = writer.put_document("/a/lock", b"text")
    assert (status.name, status.length) == (b"lock", 0)
    with pytest.raises(Exists):
        writer.put_document("/a/lock", b"other")
    with pytest.raises(NotFound):
        writer.put_document("/new/lock", b"text")
    assert cluster.files == {"/a/lock": b""}
    assert cluster.attributes["/a/lock"] == ("user.stripefs.document", b"text")
    assert cluster.tried == cluster.by_native == []


@pytest.mark.parametrize(
    ("configured", "given", "made"),
    [
        ((0, 0), {}, ("134217728", "3")),
        ((0, 0), {"replication": 1}, ("134217728", "1")),
        ((64 * MIB, 2), {}, ("67108864", "2")),
        ((64 * MIB, 2), {"block_size": 1052672, "replication": 1}, ("1052672", "1")),
    ],
)
def test_a_placed_file_is_made_as_was_asked_for_or_else_as_it_is_configured(cluster, configured, given, made):
    """At the client before the NameNode; a DataNode would take its own configuration."""
    cluster.shape = {"blockSize": 134217728, "replication": 3}
    writer_of(cluster, shape=configured).create("/placed", host="dn1", length=0, **given)
    [(_name, target, _path)] = cluster.tried
    query = parse_qs(urlsplit(target).query)
    assert (query["blocksize"], query["replication"]) == ([made[0]], [made[1]])
    assert (query["namenoderpcaddress"], query["overwrite"]) == (["namenode:8020"], ["false"])
    assert query["createparent"] == ["false"]


def test_a_file_longer_than_what_was_written_is_not_discarded(cluster):
    """It is somebody else's."""
    writer_of(cluster).create("/placed", host="dn1", length=0)
    for at_most, left in ((3, {"/placed": b"four"}), (4, {})):
        cluster.files = {"/placed": b"four"}
        cluster.discard(at_most)
        assert cluster.files == left
