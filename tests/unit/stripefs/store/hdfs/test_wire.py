"""WebHDFS and Protocol Buffers on the wire, and the order of HDFS's names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.errors import (
    Busy,
    Exists,
    IsADirectory,
    NameTooLong,
    NotADirectory,
    NotEmpty,
    NotFound,
    PermissionDenied,
    QuotaExceeded,
    ServiceDown,
    StoreError,
    Transient,
    Unsupported,
)
from stripefs.store.base import Kind, Status
from stripefs.store.hdfs import protobuf
from stripefs.store.hdfs.wire import (
    Located,
    Replica,
    byte_order,
    last_block_of,
    located_of,
    page_of,
    remote_error,
    request_target,
    status_of,
    temporary_path,
)

FILE = {
    "accessTime": 1700000000001,
    "blockSize": 8388608,
    "childrenNum": 0,
    "fileId": 16388,
    "group": "staff",
    "length": 67108864,
    "modificationTime": 1700000000123,
    "owner": "ann",
    "pathSuffix": "grüße",
    "permission": "1644",
    "replication": 3,
    "storagePolicy": 0,
    "type": "FILE",
}


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_any_path_survives_the_url(name: str) -> None:
    target = request_target(f"/a/{name}", "OPEN", "me", {"startAfter": name, "offset": 3})
    assert target.isascii()
    assert not set(target) & set(" \r\n\t\"'<>#")
    parts = urlsplit(f"http://host{target}")
    assert unquote(parts.path) == f"/webhdfs/v1/a/{name}"
    assert parse_qs(parts.query, keep_blank_values=True) == {
        "op": ["OPEN"],
        "user.name": ["me"],
        "startAfter": [name],
        "offset": ["3"],
    }


def test_a_status() -> None:
    status = status_of({"FileStatus": FILE})
    assert (status.name, status.kind, status.length) == ("grüße".encode(), Kind.FILE, 67108864)
    assert (status.mtime_ns, status.atime_ns) == (1700000000123000000, 1700000000001000000)
    assert (status.mode, status.owner, status.group) == (0o1644, "ann", "staff")
    assert (status.file_id, status.block_size, status.replication) == ("16388", 8388608, 3)
    assert status_of({"FileStatus": FILE}, b"other").name == b"other"
    assert status_of({"FileStatus": FILE | {"type": "DIRECTORY"}}).kind is Kind.DIRECTORY
    assert status_of({"FileStatus": FILE | {"type": "SOMETHING"}}).kind is Kind.OTHER
    assert status_of({"FileStatus": {key: value for key, value in FILE.items() if key != "fileId"}}).file_id == ""


@pytest.mark.parametrize("change", [{"length": "many"}, {"permission": "rwx"}, {"pathSuffix": None}, {"owner": None}])
def test_no_status(change: dict[str, object]) -> None:
    document = {key: value for key, value in (FILE | change).items() if value is not None or key == "pathSuffix"}
    with pytest.raises(StoreError):
        status_of({"FileStatus": document})


def test_a_page_of_a_listing() -> None:
    listing = {"partialListing": {"FileStatuses": {"FileStatus": [FILE]}}, "remainingEntries": 7}
    assert page_of({"DirectoryListing": listing}) == ([status_of({"FileStatus": FILE})], True)
    assert page_of({"DirectoryListing": listing | {"remainingEntries": 0}})[1] is False
    for nonsense in ({}, {"DirectoryListing": {"partialListing": []}}):
        with pytest.raises(StoreError):
            page_of(nonsense)


def block(offset: int, *ports: int) -> dict[str, object]:
    replicas = [
        {"name": f"10.0.0.{n}:9866", "ipAddr": f"10.0.0.{n}", "hostName": f"dn{n}", "infoPort": 9864} for n in ports
    ]
    return {"startOffset": offset, "block": {"numBytes": 100}, "locations": replicas}


def test_located_blocks() -> None:
    blocks = located_of({"LocatedBlocks": {"locatedBlocks": [block(100, 2), block(0, 1, 2)]}})
    one, two = (Replica(f"10.0.0.{n}:9866", f"10.0.0.{n}", f"dn{n}", 9864) for n in (1, 2))
    assert blocks == [Located(0, 100, (one, two)), Located(100, 100, (two,))]
    assert located_of({"LocatedBlocks": {"locatedBlocks": []}}) == []
    for nonsense in (
        {},
        {"locatedBlocks": []},
        *({"LocatedBlocks": {"locatedBlocks": x}} for x in (None, [{}], ["x"])),
    ):
        with pytest.raises(StoreError):
            located_of(nonsense)


def test_the_block_that_is_being_written() -> None:
    begun = {"locatedBlocks": [block(0, 1), block(100, 2)], "lastLocatedBlock": block(100, 2)}
    assert last_block_of({"LocatedBlocks": begun}) == (2, (Replica("10.0.0.2:9866", "10.0.0.2", "dn2", 9864),))
    assert last_block_of({"LocatedBlocks": {"locatedBlocks": [], "lastLocatedBlock": None}}) == (0, ())
    for nonsense in ({}, {"LocatedBlocks": {"locatedBlocks": []}}, {"LocatedBlocks": begun | {"lastLocatedBlock": 1}}):
        with pytest.raises(StoreError):
            last_block_of(nonsense)


@pytest.mark.parametrize(
    ("exception", "message", "kind"),
    [
        ("java.io.FileNotFoundException", "File does not exist: /x", NotFound),
        ("FileNotFoundException", "Path is not a file: /x\n\tat org", IsADirectory),
        ("org.apache.hadoop.fs.InvalidPathException", "Invalid path name", NotFound),
        ("org.apache.hadoop.security.AccessControlException", "/f (is not a directory)", NotADirectory),
        ("org.apache.hadoop.fs.ParentNotDirectoryException", "/f is a file", NotADirectory),
        ("org.apache.hadoop.security.AccessControlException", "Permission denied: user=me", PermissionDenied),
        ("org.apache.hadoop.security.token.SecretManager$InvalidToken", "gone", PermissionDenied),
        ("org.apache.hadoop.ipc.StandbyException", "Operation category READ is not supported", ServiceDown),
        ("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "", ServiceDown),
        ("java.net.ConnectException", "Call From a to b:9000 failed", ServiceDown),
        ("java.io.EOFException", 'End of File Exception; destination host is: "nn":9000;', ServiceDown),
        ("java.io.EOFException", "Cannot seek after EOF", StoreError),
        ("java.lang.UnsupportedOperationException", "no", Unsupported),
        ("java.lang.IllegalArgumentException", 'Invalid value: "X" is not a valid GET operation.', Unsupported),
        ("org.apache.hadoop.hdfs.protocol.FSLimitException$PathComponentTooLongException", "limit=255", NameTooLong),
        ("java.io.IOException", "mkdirs: Pathname too long.  Limit 8000 characters, 1000 levels.", NameTooLong),
        ("java.io.IOException", "something else", StoreError),
        # of changes
        ("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "The DiskSpace quota of /q", QuotaExceeded),
        ("org.apache.hadoop.hdfs.protocol.NSQuotaExceededException", "The NameSpace quota", QuotaExceeded),
        ("org.apache.hadoop.fs.FileAlreadyExistsException", "there", Exists),
        ("org.apache.hadoop.fs.PathIsNotEmptyDirectoryException", "`/d is non empty'", NotEmpty),
        ("java.io.IOException", "rename destination directory is not empty: /r/full", NotEmpty),
        ("org.apache.hadoop.hdfs.server.namenode.NotReplicatedYetException", "Not replicated yet: /f", Transient),
        ("org.apache.hadoop.hdfs.server.namenode.LeaseExpiredException", "lost", Transient),
        ("org.apache.hadoop.hdfs.protocol.AlreadyBeingCreatedException", "failed to create file", Busy),
        ("java.lang.IllegalArgumentException", 'CONCAT is not a valid POST operation."', Unsupported),
        ("java.io.FileNotFoundException", "Parent directory doesn't exist: /no\n\tat org.apache", NotFound),
    ],
)
def test_what_a_java_exception_becomes(exception: str, message: str, kind: type[StoreError]) -> None:
    error = remote_error(exception, message, "/x")
    assert type(error) is kind
    assert "\n" not in str(error)
    assert "/x" in str(error)


@pytest.mark.parametrize("name", ["a", "n" * 255, "名" * 85, "é" * 127, "a" + "名" * 84])
def test_temporary_names_are_hidden_no_longer_than_hdfs_takes_and_never_alike(name):
    names = {temporary_path(f"/folder/{name}") for _ in range(3)}
    assert len(names) == 3
    for path in names:
        folder, _, hidden = path.rpartition("/")
        assert folder == "/folder"
        assert hidden.startswith("." + name[:60])
        assert hidden.endswith(".tmp")
        assert len(hidden.encode()) <= 255


def signed(name: bytes) -> list[int]:
    return [byte - 256 if byte > 127 else byte for byte in name]


def in_batches(names: Sequence[bytes], size: int) -> Iterator[Sequence[Status]]:
    for start in range(0, len(names), size):
        yield [Status(name, Kind.FILE) for name in names[start : start + size]]


NAMES = st.lists(st.text("ab~é\U0001f389", min_size=1, max_size=5).map(str.encode), unique=True, max_size=40)


@given(NAMES, st.integers(1, 7), st.one_of(st.just(b""), st.binary(max_size=3), st.sampled_from([b"a", b"ab", b"~"])))
def test_either_order_becomes_byte_order(names: list[bytes], size: int, after: bytes) -> None:
    for key in (signed, bytes):
        batches = list(byte_order(in_batches(sorted(names, key=key), size), after))
        assert [status.name for batch in batches for status in batch] == sorted(n for n in names if n > after)
        assert all(batches)


def test_names_outside_ascii_wait_for_their_group_only() -> None:
    names = ["aé", "ab", "b", "c"]
    batches = byte_order(in_batches([name.encode() for name in names], 1))
    assert [[status.name.decode() for status in batch] for batch in batches] == [["ab"], ["aé", "b"], ["c"]]


VALUES = st.lists(st.tuples(st.integers(1, 2000), st.one_of(st.integers(0, 2**64 - 1), st.binary(max_size=200))))


def encoded(values: list[tuple[int, int | bytes]]) -> bytes:
    return b"".join(
        protobuf.number_field(number, value) if isinstance(value, int) else protobuf.bytes_field(number, value)
        for number, value in values
    )


@given(VALUES, st.data())
def test_fields_come_back_and_no_others_of_a_message_that_is_cut_off(
    values: list[tuple[int, int | bytes]], data: st.DataObject
) -> None:
    message = encoded(values)
    assert list(protobuf.fields(message)) == values
    cut = message[: data.draw(st.integers(0, len(message)))]
    found: list[tuple[int, int | bytes]] = []
    with contextlib.suppress(ValueError):
        found.extend(protobuf.fields(cut))  # those before the error stay
    assert found == values[: len(found)]


@given(st.binary(max_size=100))
def test_any_bytes_are_a_message_or_a_value_error(message: bytes) -> None:
    with contextlib.suppress(ValueError):
        list(protobuf.fields(message))


def test_values_of_a_fixed_size() -> None:
    message = b"\x09" + b"12345678" + b"\x15" + b"abcd"
    assert list(protobuf.fields(message)) == [(1, b"12345678"), (2, b"abcd")]
    with pytest.raises(ValueError, match="ends within a field"):
        list(protobuf.fields(message[:-1]))
    with pytest.raises(ValueError, match="wire type 3"):
        list(protobuf.fields(b"\x0b"))


@pytest.mark.parametrize(("value", "wire"), [(0, 0), (-1, 1), (1, 2), (-3, 5), (2**31 - 1, 2**32 - 2)])
def test_signed_numbers(value: int, wire: int) -> None:
    assert protobuf.signed(value) == wire
