"""The s3 client against a real server of the S3 protocol on loopback; gs only as far as it goes without one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from stripefs.errors import (
    NotADirectory,
    NotFound,
    PermissionDenied,
    ServiceDown,
    StaleVersion,
    StoreError,
    Unsupported,
)
from stripefs.gc.collect import Collection
from stripefs.settings import StoreSettings
from stripefs.store import object_store
from stripefs.store.base import Kind, Store
from stripefs.store.object_store import ArrowStore
from stripefs.store.striped import StripedStore
from stripefs.store.url import open_store
from tests.contract.listing import ListingConformance
from tests.contract.putting import PutConformance
from tests.contract.reading import StoreConformance
from tests.contract.writing import WriteConformance
from tests.support.populate import BucketPopulate
from tests.support.stores import Place, content, listing
from tests.support.striped_files import write_striped
from tests.tools.s3_server import BUCKET, Server, s3_server


class TestS3(WriteConformance, PutConformance, ListingConformance, StoreConformance):
    below_a_file = (NotFound, NotADirectory)  # keys know no directories: nothing is there
    moves_directories = False

    @pytest.fixture(scope="class")
    @classmethod
    def place(cls, server: Server) -> Iterator[Place]:
        populate = BucketPopulate(server.client, BUCKET, "a prefix/über")
        populate.mkdir(b"")
        store = open_store(StoreSettings(url=server.url("a%20prefix/%C3%BCber")))
        yield Place(store, populate)
        store.close()

    def test_an_object_of_an_earlier_second_is_replaced_and_removed(
        self, store: Store, populate: BucketPopulate, folder: bytes
    ) -> None:
        """A rename dates what it moves anew."""
        path = folder + b"/file"
        populate.write(path, b"first")
        populate.write(folder + b"/next", b"second")
        seen = store.stat(path).identity
        time.sleep(1.1)  # the server's clock, which dates objects by the second
        store.compare_and_rename(folder + b"/next", path, seen)
        with pytest.raises(StaleVersion):
            store.compare_and_remove(path, seen)
        now = store.stat(path).identity
        time.sleep(1.1)
        store.compare_and_remove(path, now)
        assert listing(store, folder) == []


@pytest.fixture
def store(server: Server, request: pytest.FixtureRequest) -> Iterator[Store]:
    prefix = request.node.name
    server.client.put_object(Bucket=BUCKET, Key=f"{prefix}/file", Body=content(1000))
    store = open_store(StoreSettings(url=server.url(prefix)))
    yield store
    store.close()


def test_keys_that_are_no_paths(server: Server, store: Store, request: pytest.FixtureRequest) -> None:
    for key in ("/empty", "./dot", "../dots", "both", "both/below", "prefix/below"):
        server.client.put_object(Bucket=BUCKET, Key=f"{request.node.name}/{key}", Body=b"x")
    found = {status.name: status.kind for status in listing(store, b"/")}
    assert found == {b"both": Kind.FILE, b"file": Kind.FILE, b"prefix": Kind.DIRECTORY}
    assert store.stat(b"/both").kind is Kind.FILE


def test_roots_that_cannot_be_used(server: Server, store: Store, request: pytest.FixtureRequest) -> None:
    with pytest.raises(NotFound):
        open_store(StoreSettings(url=server.url("nothing/here")))
    with pytest.raises(NotFound):
        open_store(StoreSettings(url=server.url("").replace(BUCKET, "another-bucket")))
    with pytest.raises(NotADirectory):
        open_store(StoreSettings(url=server.url(f"{request.node.name}/file")))
    with pytest.raises(NotADirectory):
        open_store(StoreSettings(url=server.url(f"{request.node.name}/file")), make=True)


@pytest.mark.parametrize("kind", ["s3", pytest.param("gs", marks=pytest.mark.slow)])
def test_an_endpoint_that_is_away(server: Server, kind: str) -> None:
    url = f"{kind}://bucket/x?endpoint-override=127.0.0.1:9&scheme=http&anonymous=true"
    with pytest.raises(ServiceDown):
        open_store(StoreSettings(url=url, host_timeout=1))


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("AWS Error ACCESS_DENIED during HeadObject operation: No response body.", PermissionDenied),
        ("google::cloud::Status(PERMISSION_DENIED: no)", PermissionDenied),
        ("AWS Error NO_SUCH_BUCKET during ListObjectsV2 operation", NotFound),
        ("AWS Error SLOW_DOWN during GetObject operation", ServiceDown),
        ("google::cloud::Status(UNAVAILABLE: retry)", ServiceDown),
    ],
)
def test_what_messages_mean(message: str, kind: type[Exception]) -> None:
    class Failing:
        def get_file_info(self, path: str) -> None:
            raise OSError(message)

    with pytest.raises(kind, match="bucket/x"):
        ArrowStore(Failing(), "bucket", "s3://bucket", {}).stat(b"/x")


def test_nothing_is_said_at_exit(server: Server) -> None:
    program = (
        "import sys; from stripefs.store.url import open_store; from stripefs.settings import StoreSettings;"
        "store = open_store(StoreSettings(url=sys.argv[1])); print(store.stat(b'/').kind.value)"
    )
    command = [sys.executable, "-W", "error", "-X", "dev", "-c", program, server.url("")]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert (done.stdout, done.stderr) == ("directory\n", "")


def test_a_writer_that_is_killed_leaves_nothing(server: Server, store: Store, request: pytest.FixtureRequest) -> None:
    script = """
import os, signal, sys
from stripefs.settings import StoreSettings
from stripefs.store.url import open_store
sink = open_store(StoreSettings(url=sys.argv[1])).create(b"/new")
sink.write(bytes(30 << 20))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script, server.url(request.node.name)], check=False, timeout=60)
    assert done.returncode == -9
    assert [status.name for status in listing(store, b"/")] == [b"file"]


def test_an_object_that_s3_cannot_copy_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "_LARGEST_COPY", 999)
    with pytest.raises(Unsupported, match="5 GiB"):
        store.rename(b"/file", b"/new")
    assert [status.name for status in listing(store, b"/")] == [b"file"]


def test_an_upload_whose_server_goes_away() -> None:
    with s3_server() as leaving:
        leaving.client.put_object(Bucket=BUCKET, Key="p/file", Body=b"x")
        store = open_store(StoreSettings(url=leaving.url("p"), host_timeout=1))
        sink = store.create(b"/new")
        sink.write(bytes(100))
    with pytest.raises(StoreError):
        sink.close()
    sink.abort()
    store.close()


NEEDED, LOST = "1" * 16, "2" * 16


def keys(server: Server) -> set[str]:
    found = server.client.list_objects_v2(Bucket=BUCKET, Prefix="gc/").get("Contents", [])
    return {each["Key"].removeprefix("gc/") for each in found if not each["Key"].endswith("/")}


def test_rubbish_goes_from_a_bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket has no renames, no locks and no directories, and times in whole seconds."""
    store = open_store(StoreSettings(url=server.url("gc")), make=True)
    data = content(3 * 4096)
    view = StripedStore(store)
    manifest = write_striped(store, b"/run/striped", data, [(len(data), 1)], version=NEEDED)
    store.put(b"/run/plain", [b"plain"])
    write_striped(store, b"/run/lost", data, [(len(data), 1)], version=LOST)
    store.remove(b"/run/lost")
    hidden = f"/run/.model.stripefs-{LOST}-0"
    store.put(hidden.encode(), [b"part"])
    before = keys(server)

    assert Collection(store, view).run().removed == 0
    assert Collection(store, view, force=True).run().removed == 0
    assert keys(server) == before
    for module in ("rules", "collect"):
        monkeypatch.setattr(f"stripefs.gc.{module}.FORCED_AGE", 0.0)
    found = Collection(store, view, force=True).run()
    assert found.trouble == []
    assert {item.path.decode() for item in found.items} == {hidden, f"/.stripefs/{LOST}"}
    assert keys(server) == {"run/striped", "run/plain", f".stripefs/{NEEDED}/0"}
    assert bytes(view.get(b"/run/striped")) == manifest.to_bytes()  # a bucket keeps no marks
    assert Collection(store, view, force=True).run().removed == 0
    store.close()
