"""Changes as a NameNode is asked for them: once, at the one that serves; what its refusals mean."""

from __future__ import annotations

import pytest

from stripefs.errors import (
    Busy,
    NotEmpty,
    NotFound,
    QuotaExceeded,
    ServiceDown,
    StoreError,
    Transient,
    Unsupported,
)
from stripefs.store.hdfs.namenode import NameNodeRest, Unanswered
from stripefs.store.hdfs.wire import remote_error
from tests.tools.fake_hdfs import TIMEOUT, FakeNameNode, closed_port, serving


def test_a_change_is_asked_for_once() -> None:
    """A reset or silence instead of an answer leaves open what became of it."""
    namenode = FakeNameNode(b"")
    for operation in ("MKDIRS", "RENAME"):
        namenode.operations[operation] = lambda request: request.reset()
    namenode.operations["DELETE"] = lambda request: setattr(request, "close_connection", True)
    with serving(namenode):
        rest = NameNodeRest([namenode.address], "me", TIMEOUT)
        rest.ask("GETFILESTATUS", "/")  # leaves a connection that a change must not use
        for method, operation in (("PUT", "MKDIRS"), ("PUT", "RENAME"), ("DELETE", "DELETE")):
            with pytest.raises(Unanswered):
                rest.change(method, operation, "/file")
        rest.close()
    assert namenode.asked == ["GETFILESTATUS", "MKDIRS", "RENAME", "DELETE"]


def test_a_change_goes_to_the_namenode_that_serves() -> None:
    standby, active = FakeNameNode(b""), FakeNameNode(b"")
    standby.refusal = ("org.apache.hadoop.ipc.StandbyException", "not supported in state standby")
    active.operations["DELETE"] = lambda request: request.document({"boolean": True})
    active.operations["RENAME"] = lambda request: request.answer(200, b"", "application/octet-stream")
    with serving(standby, active):
        rest = NameNodeRest([closed_port(), standby.address, active.address], "me", TIMEOUT)
        assert rest.change("DELETE", "DELETE", "/file") == {"boolean": True}
        assert rest.change("PUT", "RENAME", "/file") == {}
        assert rest.active == active.address
        rest.close()


def test_safe_mode_is_said_even_beside_a_dead_namenode() -> None:
    namenode = FakeNameNode(b"")
    namenode.refusal = ("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "Name node is in safe mode.")
    with serving(namenode):
        rest = NameNodeRest([closed_port(), namenode.address], "me", TIMEOUT)
        with pytest.raises(ServiceDown, match="safe mode"):
            rest.change("PUT", "MKDIRS", "/x")
        rest.close()


@pytest.mark.parametrize(
    ("exception", "message", "kind"),
    [
        ("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "The DiskSpace quota of /q", QuotaExceeded),
        ("org.apache.hadoop.hdfs.protocol.NSQuotaExceededException", "The NameSpace quota", QuotaExceeded),
        ("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "in safe mode", ServiceDown),
        ("org.apache.hadoop.fs.PathIsNotEmptyDirectoryException", "`/d is non empty'", NotEmpty),
        ("java.io.IOException", "rename destination directory is not empty: /r/full", NotEmpty),
        ("org.apache.hadoop.hdfs.server.namenode.NotReplicatedYetException", "Not replicated yet: /f", Transient),
        ("org.apache.hadoop.hdfs.protocol.AlreadyBeingCreatedException", "failed to create file", Busy),
        ("java.lang.IllegalArgumentException", 'CONCAT is not a valid POST operation."', Unsupported),
        ("java.io.FileNotFoundException", "Parent directory doesn't exist: /no\n\tat org.apache", NotFound),
    ],
)
def test_what_refusals_of_changes_mean(exception: str, message: str, kind: type[StoreError]) -> None:
    error = remote_error(exception, message, "/file")
    assert type(error) is kind
    assert "\n" not in error.message
