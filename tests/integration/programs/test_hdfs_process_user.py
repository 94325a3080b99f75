"""Users of the native connections of a process, as their server sees them."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing

import pytest

from stripefs.errors import ConfigError, StripefsError
from stripefs.store.hdfs import native
from stripefs.store.hdfs.hadoop_conf import NameNode, Target
from stripefs.store.hdfs.native import NativeClient
from stripefs.store.hdfs.native_workarounds import USER_VARIABLE, claim_user
from tests.support.python_api import python
from tests.tools.listening import listening


class Greeted:
    """Takes what clients say first, and hangs up. `said`: that, of each connection."""

    def __init__(self) -> None:
        self.address = ""
        self.said: list[bytes] = []

    def serve(self, connection: socket.socket) -> None:
        with connection:
            said = b""
            while b"ClientProtocol" not in said and (more := connection.recv(4096)):
                said += more
            self.said.append(said)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Greeted]:
    monkeypatch.setattr(native, "check_rpc", lambda address, timeout: None)
    made = Greeted()
    with listening(made.serve) as made.address:
        yield made


def client(server: Greeted, user: str) -> NativeClient:
    return NativeClient(
        Target(server.address, (NameNode(server.address, server.address),), b"", user, ""),
        timeout=30.0,
        by_hostname=False,
    )


def user_of_a_child() -> str:
    """Of one that is given no environment, as most are."""
    return python(f"import os; print(os.environ.get({USER_VARIABLE!r}, ''))").stdout.strip()


def test_each_connection_is_of_the_user_also_later(server: Greeted) -> None:
    with closing(client(server, "alice")) as made:
        for _ in range(2):
            with pytest.raises(StripefsError):
                made.stat("/x")
    assert len(server.said) >= 2
    assert all(b"\x05alice" in said for said in server.said)


def test_a_second_user_is_refused_while_the_first_is_there(server: Greeted) -> None:
    first, again = client(server, "alice"), client(server, "alice")
    with pytest.raises(ConfigError, match="connected to HDFS as alice, and cannot be bob") as refused:
        client(server, "bob")
    assert "a process for each user" in refused.value.hint
    first.close()
    first.close()
    with pytest.raises(ConfigError):
        client(server, "bob")
    again.close()
    client(server, "bob").close()


def test_who_forgets_to_close_is_let_go(server: Greeted) -> None:
    made = client(server, "alice")
    del made
    gc.collect()
    client(server, "bob").close()


@pytest.mark.parametrize(("user", "before"), [("alice", None), ("alice", "carol"), ("", None)])
def test_the_environment_is_as_before_and_children_inherit_no_more(
    monkeypatch: pytest.MonkeyPatch, user: str, before: str | None
) -> None:
    """user: "" for the one that the process runs as, for whom nothing need be set."""
    if before is None:
        monkeypatch.delenv(USER_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(USER_VARIABLE, before)
    seen = dict(os.environ)
    holder = Greeted()
    me = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    release = claim_user(user or me, holder)
    assert dict(os.environ) == seen
    assert user or user_of_a_child() == ""
    release()
    assert user_of_a_child() == (before or "")
