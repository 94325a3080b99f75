"""A NameNode that comes up while a client connects to it."""

from __future__ import annotations

from typing import Any

import pytest

from stripefs.errors import ServiceDown
from stripefs.settings import StoreSettings
from stripefs.store.hdfs import store
from stripefs.store.hdfs.namenode_webhdfs import NameNodeRest
from stripefs.store.hdfs.native import NativeClient
from stripefs.store.hdfs.store import HdfsStore
from tests.tools.hdfs import HdfsInstance

pytestmark = pytest.mark.cluster


def test_a_namenode_that_just_came_up_has_webhdfs(hdfs: HdfsInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a worker that takes over just then would miss the file ids, and take every open file for replaced."""
    up = False
    ask, connect = NameNodeRest.ask, NativeClient

    def asked(self: NameNodeRest, *arguments: Any, **parameters: Any) -> dict[str, Any]:
        if not up:
            raise ServiceDown("the NameNode is in startup mode")
        return ask(self, *arguments, **parameters)

    def connected(*arguments: Any, **parameters: Any) -> NativeClient:
        nonlocal up
        client = connect(*arguments, **parameters)
        up = True
        return client

    monkeypatch.setattr(NameNodeRest, "ask", asked)
    monkeypatch.setattr(store, "NativeClient", connected)
    made = HdfsStore(StoreSettings(url=hdfs.url))
    assert made.describe()["transport"] == "data transfer"
    assert made.capabilities.file_ids
    made.close()
