"""The hot device of an image in a real HDFS."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imagefs.cli.main import PROGRAM
from imagefs.format.inodes import HOT
from imagefs.repository.images import object_path
from imagefs.repository.traces import Traces
from tests.support.images.starts import build_tree, imports, make_tree, trace
from tests.support.images.stores import images_at
from tests.tools.hdfs import HdfsInstance

pytestmark = [pytest.mark.cluster, pytest.mark.root, pytest.mark.slow]


def test_the_hot_device_has_as_many_replicas_as_were_asked_for(
    hdfs: HdfsInstance, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{hdfs.url}/replicated"
    root = make_tree(tmp_path / "tree")
    with images_at(url) as images:
        digest = build_tree(root, images)
        Traces(images.repository).put(trace(images, digest, imports(root, 1)))
        packs = {path: status.replication for path, status in images.files(b"/packs")}
        found = []
        for wanted in (hdfs.replication + 1, hdfs.replication + 2):  # the second time the packs are there already
            assert PROGRAM.main(["optimize", f"{url}#app", "--replication", str(wanted), "--json"]) == 0
            made = json.loads(capsys.readouterr().out)
            index = images.index(images.manifest(made["digest"]).devices[HOT - 1].index)
            hot = {object_path("packs", pack.digest.hex()) for pack in index.packs}
            found.append(hot)
            now = {path: status.replication for path, status in images.files(b"/packs")}
            assert now == packs | dict.fromkeys(hot, wanted)
        assert found[0] == found[1] != set()
        assert not found[0] & packs.keys()
