"""Installers under supervision: how they end, what they leave running, and who gets which signal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from imagefs.deps import subreaper
from imagefs.deps.install import install, installer_environment
from imagefs.errors import SnapshotError
from tests.support.waiting import eventually, gone

DAEMON = (
    "setsid sh -c 'echo $$ >daemon; exec sleep 1000' >/dev/null 2>&1 </dev/null & while [ ! -s daemon ]; do :; done"
)

_PROGRAM = (
    f"import json, os, sys; sys.path.insert(0, {os.getcwd()!r})\n"
    "from imagefs.deps.install import install, installer_environment\n"
    "done = install(sys.argv[2:], installer_environment(os.environ))\n"
    "with open(sys.argv[1], 'w') as file: json.dump({'status': done.status, 'survivors': done.survivors}, file)\n"
    "sys.exit(done.status)"
)


def installing(told: Path, *command: str) -> list[str]:
    """A program that runs an installer, and notes its outcome in a file."""
    return [sys.executable, "-c", _PROGRAM, str(told), *command]


class Ended(NamedTuple):
    status: int
    survivors: list[tuple[int, str]]
    output: str


class Running:
    """An installer in a process of its own, in `folder`."""

    def __init__(self, folder: Path, script: str, **more: object) -> None:
        self._told = folder / "told.json"
        command = installing(self._told, "sh", "-c", script)
        self.process = subprocess.Popen(command, cwd=folder, **more)  # type: ignore[call-overload]
        self.folder = folder

    def note(self, name: str) -> str:
        """The content of a file that the script wrote, once it has any."""
        return eventually(lambda: self._read(name), f"the script writes {name}")

    def pid(self, name: str) -> int:
        return int(self.note(name))

    def end(self) -> Ended:
        output, _ = self.process.communicate()
        told = json.loads(self._told.read_text())
        assert self.process.returncode == told["status"]
        return Ended(told["status"], [(pid, line) for pid, line in told["survivors"]], (output or b"").decode())

    def _read(self, name: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / name).read_text().strip()
        return ""


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("exit 0", 0),
        ("exit 200", 200),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
    ],
)
def test_the_status_is_that_of_the_command(script: str, status: int) -> None:
    outcome = install(["sh", "-c", script], os.environ)
    assert (outcome.status, outcome.survivors) == (status, [])
    assert outcome.seconds > 0


def test_a_command_that_is_not_there(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert install(["no-such-installer"], os.environ).status == 127
    assert "no-such-installer: No such file or directory" in capfd.readouterr().err
    (tmp_path / "script").write_text("exit 0")
    assert install([str(tmp_path / "script")], os.environ).status == 126


def test_its_arguments_and_streams_are_as_they_were(tmp_path: Path) -> None:
    command = ["sh", "-c", 'echo "$2|$3"; cat; echo problem >&2; pwd', "sh", "--", "two  words", "*"]
    done = subprocess.run(installing(tmp_path / "told", *command), input=b"typed\n", capture_output=True, cwd=tmp_path)
    assert done.stdout.decode().splitlines() == ["two  words|*", "typed", str(tmp_path)]
    assert done.stderr.decode().splitlines()[-1] == "problem"


def test_what_else_is_open_for_it_stays_open() -> None:
    with tempfile.TemporaryFile() as file:
        os.set_inheritable(file.fileno(), True)
        assert install(["sh", "-c", f"echo told >/proc/self/fd/{file.fileno()}"], os.environ).status == 0
        file.seek(0)
        assert file.read() == b"told\n"


def test_its_signals_are_as_they_were() -> None:
    """Nothing is blocked, ignored or left open that would not be without us."""
    script = "grep -E '^Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd | sort -n | tail -1"
    plain = subprocess.run(["sh", "-c", script], capture_output=True, text=True).stdout
    program = f"import os; from imagefs.deps.install import install; install(['sh', '-c', {script!r}], os.environ)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == plain


def test_bytecode_is_left_to_us_unless_the_user_says_otherwise() -> None:
    assert installer_environment({"A": "1"}) == {"A": "1", "PIP_COMPILE": "0", "UV_COMPILE_BYTECODE": "0"}
    assert installer_environment({"PIP_NO_COMPILE": "1", "UV_COMPILE_BYTECODE": "1"}) == {
        "PIP_NO_COMPILE": "1",
        "UV_COMPILE_BYTECODE": "1",
    }


def test_a_daemon_that_stays_is_named_and_ended(tmp_path: Path) -> None:
    ended = Running(tmp_path, DAEMON).end()
    daemon = int((tmp_path / "daemon").read_text())
    assert (ended.status, ended.survivors) == (0, [(daemon, "sleep 1000")])
    assert gone(daemon)


def test_one_that_does_not_heed_is_killed_with_all_below_it(tmp_path: Path) -> None:
    stubborn = "trap '' TERM; echo $$ >daemon; sleep 1000 & echo $! >below; while :; do sleep 1000; done"
    script = f'setsid sh -c "{stubborn.replace("$", chr(92) + "$")}" >/dev/null 2>&1 & while [ ! -s below ]; do :; done'
    running = Running(tmp_path, script)
    ended = running.end()
    pids = {running.pid("daemon"), running.pid("below")}
    assert pids <= {pid for pid, _ in ended.survivors}
    assert all(gone(pid) for pid in pids)


def test_what_ends_soon_by_itself_is_waited_for(tmp_path: Path) -> None:
    ended = Running(tmp_path, "(sleep 0.3; echo late >late) & exit 5").end()
    assert (ended.status, ended.survivors) == (5, [])
    assert (tmp_path / "late").read_text() == "late\n"


@pytest.mark.parametrize("name", ["TERM", "HUP", "USR1"])
def test_a_signal_is_passed_on(tmp_path: Path, name: str) -> None:
    running = Running(tmp_path, f"trap 'echo {name} >>got; exit 9' {name}; echo 1 >ready; while :; do sleep 0.01; done")
    running.note("ready")
    running.process.send_signal(signal.Signals[f"SIG{name}"])
    assert running.end()[:2] == (9, [])
    assert (tmp_path / "got").read_text() == f"{name}\n"


def test_what_is_typed_arrives_once(tmp_path: Path) -> None:
    """A terminal sends it to the command and to us."""
    master, terminal = pty.openpty()
    script = "trap 'echo INT >>got' INT; echo 1 >ready; while [ ! -e enough ]; do sleep 0.01; done; sleep 0.2"
    # A session of its own, whose terminal this is.
    attach = (
        "import os, sys; os.setsid(); os.close(os.open(os.ttyname(0), os.O_RDWR)); os.execvp(sys.argv[1], sys.argv[1:])"
    )
    command = installing(tmp_path / "told", "sh", "-c", script)
    process = subprocess.Popen([sys.executable, "-c", attach, *command], stdin=terminal, cwd=tmp_path)
    os.close(terminal)
    with contextlib.closing(os.fdopen(master, "wb", buffering=0)) as keyboard:
        eventually((tmp_path / "ready").exists, "the script runs")
        keyboard.write(b"\x03")
        eventually((tmp_path / "got").exists, "the script is interrupted")
        (tmp_path / "enough").touch()
        assert process.wait() == 0
    assert (tmp_path / "got").read_text() == "INT\n"


def test_when_we_are_killed_all_of_it_is(tmp_path: Path) -> None:
    running = Running(tmp_path, f"{DAEMON}; echo $$ >command; sleep 1000 & echo $! >below; wait")
    pids = [running.pid(name) for name in ("daemon", "command", "below")]
    running.process.kill()
    running.process.wait()
    for pid in pids:
        eventually(partial(gone, pid), f"{pid} ends")


def test_when_what_waits_for_it_is_killed_the_command_is(tmp_path: Path) -> None:
    script = "sleep 0.5; echo $PPID >reaper; echo $$ >command; exec sleep 1000"  # by then it is known that this runs
    running = Running(tmp_path, script)
    command = running.pid("command")
    os.kill(running.pid("reaper"), signal.SIGKILL)
    assert running.end().status == 128 + signal.SIGKILL
    assert gone(command)


def test_what_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(SnapshotError, match="cannot be started: No such file"):
        install(["true"], os.environ)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SnapshotError, match="under supervision"):
        install(["true"], os.environ)


def test_a_signal_before_the_command_runs_ends_us(tmp_path: Path) -> None:
    """No plain installation may follow, which is what happens when supervision fails."""
    (tmp_path / "slow").write_text("#!/bin/sh\necho $$ >started; exec sleep 1000\n")
    (tmp_path / "slow").chmod(0o755)
    program = f"import sys; sys.executable = {str(tmp_path / 'slow')!r}; " + _PROGRAM
    process = subprocess.Popen([sys.executable, "-c", program, "told", "touch", "installed"], cwd=tmp_path)
    started = tmp_path / "started"
    starting = int(eventually(lambda: started.exists() and started.read_text(), "it starts"))
    process.terminate()
    os.kill(starting, signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM
    assert not (tmp_path / "installed").exists()


def test_signal_handlers_are_as_before() -> None:
    """Else nobody could interrupt what follows an installation."""
    before = [signal.getsignal(number) for number in subreaper.FORWARDED]
    install(["true"], os.environ)
    assert [signal.getsignal(number) for number in subreaper.FORWARDED] == before


def test_what_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """As below nohup."""
    ignore = partial(signal.signal, signal.SIGHUP, signal.SIG_IGN)
    running = Running(tmp_path, "kill -HUP $$; kill -HUP $PPID; echo 1 >alive", preexec_fn=ignore)
    assert running.end().status == 0
    assert running.note("alive") == "1"
