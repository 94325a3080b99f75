"""gc, recover and info through a mount whose writer was killed; replaced versions that somebody still reads."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stripefs import logs
from stripefs.cli.main import PROGRAM
from stripefs.settings import WriteSettings
from tests.tools.mounts import MIB, REPLACED, Mounted, Mounts, eventually, reading

pytestmark = pytest.mark.mount

_WRITER = """
import os, sys, time
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
for _ in range(12):
    os.write(file, b"n" * (1 << 20))
os.fsync(file)
os.write(file, b"x" * (1 << 20))
print("durable", flush=True)
time.sleep(600)
"""


def _mount(mounts: Mounts, **write: Any) -> Mounted:
    settings = mounts.prepare(rw=True)._replace(write=WriteSettings(layout="striped", **write))
    return mounts.start(settings).wait_ready()


def _versions(source: Path) -> set[str]:
    return {path.name for path in (source / ".stripefs").iterdir()}


def _age(source: Path, days: float) -> None:
    then = time.time() - days * 86400
    for path in sorted(source.rglob("*"), reverse=True):
        os.utime(path, (then, then))


def test_a_writer_that_was_killed(
    mounts: Mounts, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "configure", lambda *_: None)  # which would hold for the tests that follow as well

    def answer(code: int, *arguments: object) -> Any:
        assert PROGRAM.main([*map(str, arguments), "--json"]) == code
        out = capsys.readouterr().out
        return json.loads(out) if out else None

    mounts.forgive("its writer was killed")
    mounted = _mount(mounts)
    m, s = mounted.path, mounts.source
    (m / "run").mkdir()
    (m / "run/model").write_bytes(b"o" * 10 * MIB)
    info = answer(0, "info", m / "run/model")
    assert (info["layout"], info["length"], info["path"]) == ("striped", 10 * MIB, "/run/model")

    with reading([sys.executable, "-c", _WRITER, str(m / "run/model")]) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "durable\n"
        assert answer(0, "gc", m, "--force")["removed"] == 0
        assert answer(3, "recover", m / "run/model") is None  # somebody writes it
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        eventually(lambda: mounted.status()["tree"]["open_for_writing"] == 0, "the end of the writer")

    assert (m / "run/model").read_bytes() == b"o" * 10 * MIB
    eventually(lambda: not (s / "run/.model.stripefs-lock").exists(), "the end of the lock")
    found = answer(0, "gc", m)
    assert (found["removed"], found["recoverable"], found["trouble"]) == (0, ["/run/model"], [])
    assert answer(3, "recover", m / "run/model") is None  # the old version stands there
    assert answer(0, "recover", m / "run/model", "--to", "kept")["bytes"] == 12 * MIB
    assert eventually(lambda: (m / "run/kept").exists(), "the recovered file")
    assert (m / "run/kept").read_bytes() == b"n" * 12 * MIB

    _age(s, 2)
    answer(0, "gc", m)
    assert {path.name for path in (s / "run").iterdir()} == {"model", "kept"}
    assert len(_versions(s)) == 2
    assert (m / "run/model").read_bytes() == b"o" * 10 * MIB
    assert (m / "run/kept").read_bytes() == b"n" * 12 * MIB
    assert mounted.stop() == 0


def test_a_directory_in_which_a_writer_died_can_be_removed(mounts: Mounts) -> None:
    """As soon as nobody can be at work there any more, and not before."""
    mounts.forgive(REPLACED, "was being written when the worker ended", "looks empty and stays")
    mounted = mounts.start(mounts.prepare(rw=True)._replace(write=WriteSettings(layout="plain"))).wait_ready()
    m, s = mounted.path, mounts.source
    (m / "run").mkdir()
    os.setxattr(m / "run", "user.stripefs.layout", b"plain")
    writer = os.open(m / "run/model", os.O_WRONLY | os.O_CREAT)
    for _ in range(12):
        os.write(writer, b"x" * MIB)
    eventually(lambda: len(os.listdir(s / "run")) == 3, "the lock, the layout and what is written")
    mounted.kill_worker()
    with pytest.raises(OSError, match="Input/output error"):
        os.close(writer)
    assert os.listdir(m / "run") == []
    with pytest.raises(OSError, match="not empty"):
        (m / "run").rmdir()
    assert len(os.listdir(s / "run")) == 3
    assert "stripefs gc" in mounted.log_text()
    _age(s, 61 / 86400)
    (m / "run").rmdir()
    assert not (s / "run").exists()
    assert mounted.stop() == 0


def test_replaced_versions_are_readable_for_their_grace_and_then_go(mounts: Mounts) -> None:
    def replace(m: Path) -> None:
        (m / "new").write_bytes(b"n" * 10 * MIB)
        (m / "new").rename(m / "model")
        (m / "gone").unlink()

    mounted = _mount(mounts)
    m, s = mounted.path, mounts.source
    for name in ("model", "gone"):
        (m / name).write_bytes(name[:1].encode() * 10 * MIB)
    before = _versions(s)
    with open(m / "model", "rb") as replaced, open(m / "gone", "rb") as unlinked:
        replace(m)
        assert replaced.read() == b"m" * 10 * MIB
        assert unlinked.read() == b"g" * 10 * MIB
    assert (m / "model").read_bytes() == b"n" * 10 * MIB
    assert mounted.status()["writer"]["buried_versions"] == 2
    assert before < _versions(s)
    assert mounted.stop() == 0

    mounted = _mount(mounts, grace=0.1)
    m = mounted.path
    (m / "gone").write_bytes(b"g" * 10 * MIB)
    here = _versions(s) - before
    replace(m)
    eventually(lambda: not here & _versions(s), "the end of the replaced versions")
    assert (m / "model").read_bytes() == b"n" * 10 * MIB
    assert len(_versions(s) - before) == 1
    assert mounted.stop() == 0
