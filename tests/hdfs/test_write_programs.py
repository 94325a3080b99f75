"""Programs that save to the real HDFS through a mount, and writers and workers that die there."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from stripefs.settings import StoreSettings
from stripefs.store.striped import StripedStore
from stripefs.store.url import open_store
from tests.soak.writing import make_deaths, soak_writers
from tests.support.write_programs import Place, Program, calls, checkpoints, commands
from tests.support.written_mounts import writable
from tests.tools import command
from tests.tools.hdfs import HdfsInstance
from tests.tools.mounts import MIB, Mounts, drop_cache, eventually
from tests.tools.webhdfs import HdfsPopulate, WebHdfs

pytestmark = [pytest.mark.cluster, pytest.mark.mount, pytest.mark.root]

SAVING = (checkpoints.safetensors, checkpoints.torch_save, checkpoints.close_and_replace)
OTHERS = (checkpoints.distributed_checkpoint, commands.rsync, calls.appending, calls.seeking_back)
"""All programs run on a local store; these do here what others do not."""


@pytest.mark.parametrize(("layout", "programs"), [("concat", SAVING + OTHERS), ("striped", SAVING)])
def test_programs_save_to_hdfs(
    hdfs: HdfsInstance, mounts: Mounts, tmp_path: Path, layout: str, programs: tuple[Program, ...]
) -> None:
    HdfsPopulate(WebHdfs(hdfs.web), f"/programs-{layout}")  # makes the directory
    url = f"{hdfs.url}/programs-{layout}"
    settings = writable(mounts, url, layout=layout, unit=MIB, staging=tmp_path / "staging", write_memory=64 * MIB)
    mounted = mounts.start(settings).wait_ready()
    store = StripedStore(open_store(StoreSettings(url=url)))
    try:
        for program in programs:
            folder, aside = mounted.path / program.__name__, tmp_path / program.__name__
            folder.mkdir()
            aside.mkdir()
            for name, data in program(Place(folder, aside)).items():
                drop_cache(folder / name)
                assert (folder / name).read_bytes() == data, f"{program.__name__}: {name}"
                assert store.get(f"/{program.__name__}/{name}".encode()) == data, f"{program.__name__}: {name}"
    finally:
        store.close()
    assert mounted.stop() == 0
    eventually(lambda: not _hidden(hdfs, f"/programs-{layout}"), "an end of hidden files")


@pytest.mark.parametrize("layout", ["striped", "concat"])
def test_writers_and_workers_die_on_hdfs(hdfs: HdfsInstance, place: command.Place, layout: str) -> None:
    folder = f"/dying-{layout}"
    HdfsPopulate(WebHdfs(hdfs.web), folder)
    summary = soak_writers(
        place,
        f"{hdfs.url}{folder}",
        make_deaths(5, 3, 2),
        seed=5,
        say=print,
        options=("--layout", layout, "--write-memory", "64MiB", "--unit", "1MiB"),
        age=lambda: _age(WebHdfs(hdfs.web), folder),
    )
    assert summary["wrong"] == 0
    assert not _hidden(hdfs, folder)


def _hidden(hdfs: HdfsInstance, folder: str) -> list[str]:
    return [path for path, _ in _walk(WebHdfs(hdfs.web), folder) if ".stripefs-" in os.path.basename(path)]


def _walk(web: WebHdfs, folder: str) -> list[tuple[str, str]]:
    """(path, FILE or DIRECTORY) of all below."""
    found = []
    for entry in web("GET", "LISTSTATUS", folder)["FileStatuses"]["FileStatus"]:
        path = f"{folder}/{entry['pathSuffix']}"
        found.append((path, entry["type"]))
        if entry["type"] == "DIRECTORY":
            found += _walk(web, path)
    return found


def _age(web: WebHdfs, folder: str) -> None:
    """Everything there was changed two days ago."""
    then = int((time.time() - 2 * 86_400) * 1000)
    for path, _ in _walk(web, folder):
        web("PUT", "SETTIMES", path, modificationtime=then)
