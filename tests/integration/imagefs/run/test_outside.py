"""Effects of containers on the host and of the host on containers."""

from __future__ import annotations

import signal
import stat
from pathlib import Path

import pytest

from imagefs.plane import erofs
from imagefs.run.options import Bind
from stripefs.fuse import kernel
from tests.integration.imagefs.run.material import TRAPS
from tests.support.images import small_image
from tests.support.images.small_image import SmallImage, loops
from tests.tools.containers import Containers, wait_for

pytestmark = [pytest.mark.mount, pytest.mark.root]


def test_mounts_of_the_host_do_not_live_on_in_containers(
    containers: Containers, image: SmallImage, tmp_path: Path
) -> None:
    kept, gone = tmp_path / "kept", tmp_path / "gone"
    for place in (kept, gone):
        place.mkdir()
        small = tmp_path / f"{place.name}-image"
        (small / "root").mkdir(parents=True)
        (small / "root/file").write_text(place.name)
        made = small_image.make(small / "root", small)
        erofs.mount(made.metadata, [made.device], str(place), "loop")
    running = containers.start("sh", "-c", f"echo ready; {TRAPS}; cat /srv/file", binds=[Bind(str(kept), "/srv")])
    try:
        running.says("ready")
        for place in (kept, gone):
            kernel.unmount(str(place))
        assert wait_for(lambda: not loops(tmp_path / "gone-image"))
        assert loops(tmp_path / "kept-image")
    finally:
        running.send(signal.SIGTERM)
        assert running.end() == 42
    assert wait_for(lambda: not loops(tmp_path))


def test_nothing_of_it_shows_outside(containers: Containers) -> None:
    running = containers.start("sh", "-c", TRAPS)
    running.says("ready")
    assert not [mount for mount in kernel.mounts() if mount.path.startswith(str(containers.folder))]
    [name] = containers.names()
    entry = Path(containers.runtime_dir, "runs", name)
    assert stat.S_IMODE(entry.parent.stat().st_mode) == 0o700
    assert not list((entry / "rootfs").iterdir())
    running.send(signal.SIGTERM)
    assert running.end() == 42
