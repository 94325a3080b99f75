"""A mount of a directory whose files' parts lie in the pool of the directory above it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from stripefs import logs
from stripefs.cli.main import PROGRAM
from stripefs.settings import WriteSettings
from tests.tools.mounts import MIB, Mounted, Mounts

pytestmark = pytest.mark.mount

DATA = bytes(range(256)) * (10 * MIB // 256)


def _mount(mounts: Mounts, folder: str = "", **write: Any) -> Mounted:
    settings = mounts.prepare(f"file://{mounts.source}{folder}", rw=True)
    return mounts.start(settings._replace(write=WriteSettings(layout="striped", grace=0.0, **write))).wait_ready()


def _parts(source: Path) -> int:
    return sum(path.is_file() for path in (source / ".stripefs").rglob("*"))


def test_files_of_a_trusted_pool(
    mounts: Mounts, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read, renamed, replaced and unlinked, and never added to; without trust they fail with a clear line."""
    monkeypatch.setattr(logs, "configure", lambda *_: None)  # which would hold for the tests that follow as well
    mounts.forgive("--trust-pool", "only written from start to end", "is not published")
    s = mounts.source
    above = _mount(mounts)
    (above.path / "run1").mkdir()
    for name in ("model", "other"):
        (above.path / "run1" / name).write_bytes(DATA)
    parts = _parts(s)

    plain = _mount(mounts, "/run1")
    assert (plain.path / "model").stat().st_size == len(DATA)
    with pytest.raises(OSError, match="Input/output error") as caught:
        (plain.path / "model").read_bytes()
    assert caught.value.errno == errno.EIO
    assert f"it was written with the pool {s}/.stripefs; see --trust-pool" in plain.log_text()
    assert plain.stop() == 0

    mounted = _mount(mounts, "/run1", trust_pool=(f"{s}/.stripefs",))
    m = mounted.path
    assert (m / "model").read_bytes() == DATA
    assert PROGRAM.main(["info", "--json", "--trust-pool", f"{s}/.stripefs", str(m / "model")]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["layout"], facts["trouble"], sum(part["length"] > 0 for part in facts["parts"])) == (
        "striped",
        [],
        len(facts["parts"]),
    )
    writer = os.open(m / "model", os.O_WRONLY | os.O_APPEND)
    with pytest.raises(OSError, match="not supported"):
        os.write(writer, b"more")
    with contextlib.suppress(OSError):
        os.close(writer)
    assert (m / "model").read_bytes() == DATA
    os.rename(m / "model", m / "moved")
    assert (m / "moved").read_bytes() == DATA
    (m / "other").write_bytes(DATA[::-1])
    assert (m / "other").read_bytes() == DATA[::-1]
    (m / "moved").unlink()
    assert mounted.stop() == 0
    assert _parts(s) == parts  # another mount's to remove
    assert (above.path / "run1/other").exists()
    assert above.stop() == 0
