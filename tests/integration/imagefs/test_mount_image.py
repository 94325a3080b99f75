"""Images mounted by the command, through the daemon, on the real kernel; and the JSON that it prints of them."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from imagefs.trace.references import stored_traces
from stripefs.fuse import kernel
from tests.support.checkout import CHECKOUT
from tests.support.images import nasty
from tests.support.images.stores import images_in
from tests.tools.imagefs_daemon import Service, built, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]


@pytest.fixture(scope="module")
def store(nasty_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store")
    built(nasty_tree, path, "nasty")
    return path


def test_the_tree_is_the_one_that_was_built(host: Service, store: Path, nasty_tree: Path) -> None:
    target = host.mountpoint()
    host.ok("mount", f"{store}#nasty", str(target))
    assert nasty.differences(target, nasty_tree) == {}
    (image,) = host.status()["images"]
    assert image["mountpoint"] == str(target)
    assert image["plane"] == "erofs"
    host.ok("umount", str(target))
    assert kernel.find_mount(str(target)) is None
    assert host.status()["images"] == []


def test_what_is_written_goes_with_the_mount(host: Service, store: Path, nasty_tree: Path) -> None:
    target = host.mountpoint()
    host.ok("mount", "--rw", f"{store}#nasty", str(target))
    (target / "files/100").write_text("changed")
    (target / "new").write_text("new")
    shutil.rmtree(target / "many")
    assert (target / "files/100").read_text() == "changed"
    host.ok("umount", str(target))
    host.ok("mount", "--rw", f"{store}#nasty", str(target))
    assert nasty.differences(target, nasty_tree) == {}
    host.ok("umount", str(target))
    left = list(Path(host.settings.cache, "upper").iterdir())
    assert left == []
    assert list(Path(host.settings.runtime, "imagefs/mounts").iterdir()) == []


def test_an_image_in_use_is_not_taken_away(host: Service, store: Path) -> None:
    target = host.mountpoint()
    host.ok("mount", f"{store}#nasty", str(target))
    with (target / "files/100").open("rb") as file:
        done = host.run("umount", str(target))
        assert done.returncode == 32
        assert "busy" in done.stderr.lower()
        assert len(done.stderr.splitlines()) == 1
        host.ok("umount", "--lazy", str(target))
        assert kernel.find_mount(str(target)) is None
        assert len(file.read()) == 100


def test_there_is_one_daemon(host: Service) -> None:
    done = host.run("daemon")
    assert done.returncode == 32
    assert "serves" in done.stderr
    assert "already" in done.stderr


def test_what_is_not_there_is_said(host: Service, store: Path) -> None:
    done = host.run("mount", f"{store}#{'0' * 64}", str(host.mountpoint()))
    assert done.returncode != 0
    assert "no image '000" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert host.status()["images"] == []


def test_a_trace_tells_what_was_read_from_what_was_read_ahead(service: Service, tmp_path: Path) -> None:
    """The kernel reads ahead on the device, where a file begins behind the end of the one before it."""
    (tmp_path / "tree").mkdir()
    for name in "abc":
        (tmp_path / "tree" / name).write_bytes(os.urandom(3 * nasty.MIB))
    built(tmp_path / "tree", tmp_path / "store", "t")
    target = service.mountpoint()
    service.ok("mount", f"{tmp_path}/store#t", str(target))
    with (target / "b").open("rb", buffering=0) as file:
        while file.read(nasty.MIB):
            pass
    service.ok("ready", str(target))
    eventually(lambda: "plan_traces" in service.log(), "the trace")
    service.ok("umount", str(target))
    (found,) = stored_traces(images_in(tmp_path / "store"), "t")
    assert {touch.path for touch in found.read} == {b"b"}
    assert sum(touch.length for touch in found.read) == 3 * nasty.MIB


# -- docs/json.md names every key that `imagefs status --json` and `imagefs ready --json` print, and no other ----------


DOCUMENTED = (CHECKOUT / "docs/json.md").read_text().split("\n## JSON of imagefs\n")[1]


def first_column(table: str) -> set[str]:
    return {key for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)}


def test_the_keys_of_status_and_ready(service: Service, image: tuple[Path, Path]) -> None:
    _, store = image
    where = service.mountpoint()
    service.ok("mount", f"{store}#t", str(where))
    printed = [service.ok(*words, "--json") for words in (("status",), ("ready", str(where)), ("status",))]
    service.ok("umount", str(where))
    before, ready, after = map(json.loads, printed)
    assert before["images"][0]["start"] == {}
    (cells,) = re.findall(r"^\| `ready` \| (.*) \|$", DOCUMENTED, re.MULTILINE)
    assert set(ready) == set(re.findall(r"`(\w+)`", cells))
    assert set(re.findall(r'"(\w+)": ', "".join(printed))) <= set(re.findall(r"`(\w+)`", DOCUMENTED))
    of_images, of_blocks = DOCUMENTED.split("\n`status` is one use of it")[1].split("\n`blocks` are figures")
    assert set(after["images"][0]) == first_column(of_images)
    assert set(after["blocks"]) == first_column(of_blocks)
