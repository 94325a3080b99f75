"""Starts of jobs go on whatever fails of ours: the store, the cache, a mount, what was published, who reads what is
told."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stripefs.fuse import kernel
from tests.contract.commands import program
from tests.integration.deps.commanding import UV_ARGUMENTS, deps, names, value
from tests.integration.deps.conftest import Job
from tests.support.deps.installed import imported, snapshots_in
from tests.support.deps.starting import Starts, away, is_mounted
from tests.support.images.faults import cut, flip, objects
from tests.support.start_events import events_in
from tests.tools.imagefs_daemon import PATIENCE, Service, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]

READ_ALL = "import heavy; open(heavy.__path__[0] + '/data.bin', 'rb').read()"


def test_a_store_that_cannot_be_reached(starts: Starts, target: Path) -> None:
    starts.store = "http://127.0.0.1:1/store"
    assert "miss" in starts.run()
    assert imported(target).returncode == 0
    assert "installed by an earlier start" in starts.run(["false"])


@pytest.mark.parametrize(
    ("kind", "how"),
    [("images", flip), ("metadata", cut), ("indexes", os.unlink), ("deps", flip), ("packs", os.unlink)],
)
def test_what_is_damaged_is_installed_and_published_anew(
    starts: Starts, service: Service, store: Path, target: Path, jobs: list[Job], kind: str, how: Callable[[Path], None]
) -> None:
    starts.run(wait=True)
    away(target)
    shutil.rmtree(service.settings.cache + "/deps")
    for path in objects(store, kind):
        how(path)
    assert "miss" in starts.run(wait=True)
    assert not is_mounted(target)
    assert imported(target).stdout == "7 320000\n"
    away(target)
    assert "mounted" in starts.run(["false"], user=jobs[0].pid)
    assert imported(target).stdout == "7 320000\n"
    # The image of a damaged document is unknown: `imagefs deps gc` removes it.
    assert len(snapshots_in(store).images.images()) == (2 if kind == "deps" else 1)


def test_a_flipped_bit_is_published_anew_by_who_has_read_it(
    starts: Starts, service: Service, store: Path, target: Path
) -> None:
    """Its pack has the right length, so nobody sees it before. The host that met it remembers, whatever becomes of its
    daemon."""
    starts.run(wait=True)
    away(target)
    shutil.rmtree(service.settings.cache + "/deps")
    (pack,) = objects(store, "packs")
    good = pack.read_bytes()
    flip(pack)
    assert "the probe failed: OSError: [Errno 5]" in starts.run(probe=READ_ALL)
    assert not is_mounted(target)
    assert imported(target).stdout == "7 320000\n"
    away(target)
    shutil.rmtree(service.settings.cache + "/deps/targets", ignore_errors=True)
    service.stop()
    told = starts.run(wait=True)
    assert ("was damaged or gone" in told, " not published" in told) == (True, False)
    assert pack.read_bytes() == good


def test_a_probe_that_fails(starts: Starts, target: Path, jobs: list[Job]) -> None:
    starts.run(wait=True)
    away(target)
    assert "the probe failed: AssertionError" in starts.run(probe="import heavy; assert heavy.VALUE == 8")
    assert not is_mounted(target)
    assert imported(target).returncode == 0
    away(target)
    assert "mounted" in starts.run(["false"], user=jobs[0].pid, probe="import heavy")


def test_files_that_were_changed_since(starts: Starts, target: Path) -> None:
    starts.run(wait=True)
    (target / "heavy/__init__.py").write_text("VALUE = 9\n")
    assert "was changed since" in starts.run(["true"])
    assert imported(target).stdout.startswith("7 ")  # an import believes the bytecode


def test_a_cache_that_cannot_be_written(own_service: Service, store: Path, wheels: Path, target: Path) -> None:
    own_service.folder.joinpath("cache").write_text("no directory")
    assert "without a snapshot" in Starts(own_service, store, wheels, target).run()
    assert imported(target).returncode == 0


def test_no_room_to_note_who_uses_it(starts: Starts, service: Service, jobs: list[Job]) -> None:
    notes = Path(service.settings.cache, "deps/targets")
    notes.mkdir(parents=True)
    kernel.mount("notes", str(notes), "tmpfs", 0, "size=64k")
    starts.run(wait=True)
    with contextlib.suppress(OSError), (notes / "fill").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    told = starts.run(["false"], user=jobs[0].pid)
    assert ("installed by an earlier start" in told, "cannot be noted" in told) == (True, True)


def test_no_room_to_note_that_it_is_whole(starts: Starts, service: Service, target: Path, jobs: list[Job]) -> None:
    """It is used all the same, and no later start takes it away."""
    notes = Path(service.settings.cache, "deps/targets")  # of the targets' marks, on a disk that is full soon
    notes.mkdir(parents=True)
    kernel.mount("notes", str(notes), "tmpfs", 0, "size=64k")
    command = ["sh", "-c", f"{' '.join(starts.install)} && ! cat /dev/zero > {notes}/fill 2>/dev/null"]
    assert "not published" in starts.run(command, user=jobs[0].pid, wait=True)
    assert imported(target).stdout == "7 320000\n"
    (notes / "fill").unlink()
    jobs[0].end()
    assert "whether what an earlier start left" in starts.run(["true"])
    assert "not empty" in starts.run(["true"], code=2, salt="other")
    assert imported(target).stdout == "7 320000\n"


def test_what_was_installed_without_us_is_not_emptied(service: Service, folder: Path, target: Path) -> None:
    """A start that failed left the directory to be emptied; since then somebody used it."""
    (folder / "requirements.txt").write_text("nothing==1.0\n")
    deps(service, "uv", "--target", target, *UV_ARGUMENTS, code=1)
    (folder / "requirements.txt").write_text("heavy\nlight\n")
    deps(service, "uv", "--strict", "--target", target, *UV_ARGUMENTS)
    assert value(sys.executable, target) == "15"
    (folder / "requirements.txt").write_text("heavy==1.0\nlight==1.0\n")
    assert "not empty" in deps(service, "uv", "--target", target, *UV_ARGUMENTS, code=2)
    assert value(sys.executable, target) == "15"


@pytest.mark.parametrize("how", ["<&- >&- 2>&-", "2>&1 | :"])
def test_nobody_to_tell(service: Service, folder: Path, target: Path, jobs: list[Job], how: str) -> None:
    """It ends as it would with a reader."""

    def start(*arguments: object) -> int:
        command = [program("imagefs"), "deps", "uv", "--target", target, "--owner", jobs[0].pid, *arguments]
        shell = ["bash", "-c", f'"$@" {how}; exit ${{PIPESTATUS[0]}}', "bash", *map(str, command)]
        return subprocess.run(shell, env=service.environment).returncode

    assert start("--wait", *UV_ARGUMENTS, "--quiet") == 0
    assert len(names(folder)) == 1
    away(target)
    assert start(*UV_ARGUMENTS, "--quiet") == 0
    assert is_mounted(target)
    service.ok("umount", str(target))
    assert start("--quiet", *UV_ARGUMENTS[2:], "heavy") == 0
    assert value(sys.executable, target) == "15"


def test_a_working_directory_that_is_gone(service: Service, folder: Path, target: Path, tmp_path: Path) -> None:
    """Many commands can do without. Events are written before this process becomes the command."""
    (tmp_path / "gone").mkdir()
    arguments = [program("imagefs"), "deps", "run", "--target", target, "--", "cp", "-r", folder / "wheels", target]
    done = subprocess.run(
        ["sh", "-c", f'rmdir {tmp_path}/gone && exec "$@"', "sh", *map(str, arguments)],
        cwd=tmp_path / "gone",
        env={**service.environment, "BOOTSEER_EVENTS": str(tmp_path / "events"), "BOOTSEER_RUN": "r7"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, "the working directory is gone; installing without" in done.stderr) == (0, True)
    assert len(list(target.iterdir())) == 2
    assert [one["name"] for one in events_in(tmp_path / "events") if one["event"] == "instant"] == ["miss"]


def test_the_installer_alone_has_the_signals_that_it_would_have() -> None:
    """Nothing is ignored that would not be without us."""
    script = "grep -E '^Sig(Blk|Ign)' /proc/self/status"
    plain = subprocess.run(["sh", "-c", script], capture_output=True, text=True).stdout
    body = f"from imagefs.deps.host import install_without; install_without('why', ['sh', '-c', {script!r}], print)"
    ours = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True).stdout
    assert ours.splitlines()[-2:] == plain.splitlines()


def test_an_installer_that_cannot_be_run_ends_like_in_a_shell(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("true\n")
    body = (
        "import sys; from imagefs.deps.host import install_without; from stripefs.cli.output import guarded\n"
        "sys.exit(guarded(lambda: install_without('why', sys.argv[1:], print), debug=False))"
    )
    for command, code in (("nowhere", 127), (str(tmp_path / "script"), 126), (str(tmp_path), 126)):
        done = subprocess.run([sys.executable, "-c", body, command], capture_output=True, text=True)
        assert (done.returncode, f"{command} cannot be run" in done.stderr) == (code, True)


def test_a_start_that_is_interrupted_ends_like_that(service: Service, folder: Path, target: Path) -> None:
    """Else bash goes on with the script that it was in."""
    script = folder / "install.sh"
    script.write_text("trap 'trap - INT; kill -INT $$' INT; touch begun; while :; do sleep 0.05; done\n")
    command = ["deps", "run", "--target", str(target), "--allow-unpinned", "--", "bash", str(script)]
    process = service.start(*command)
    eventually((folder / "begun").exists, "the script")
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=PATIENCE)
    assert (process.returncode, "status 130" in told) == (-signal.SIGINT, True)
