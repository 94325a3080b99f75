"""`imagefs startup trace`: what it sees of commands that know nothing of it, and that they do not notice."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imagefs.startup import processes
from imagefs.startup.processes import Watcher
from stripefs.startup_events import ProcessIdentity, Writer
from tests.contract.commands import program
from tests.integration.mount.conftest import mounts
from tests.support.start_events import TRACE, events
from tests.support.waiting import PATIENCE, eventually
from tests.tools.mounts import Mounts

__all__ = ["mounts"]

SEEN = """
import glob, os, time
def seen(text):
    return any(text in open(path).read() for path in glob.glob(os.environ["BOOTSEER_EVENTS"] + "/*"))
def until(text):
    while not seen(text):
        time.sleep(0.01)
"""


class Tracing:
    """The command, and the events of all that it ran."""

    def __init__(self, folder: Path) -> None:
        self.spool = folder / "spool"
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *words: str, options: tuple[str, ...] = (), **environ: str) -> subprocess.Popen[str]:
        line = [str(program("imagefs")), "startup", "trace", "--events", str(self.spool), *options, "--", *words]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(line, env=os.environ | environ, text=True, start_new_session=True, **pipes)  # type: ignore[call-overload]
        self.started.append(process)
        return process  # type: ignore[no-any-return]

    def run(self, *words: str, options: tuple[str, ...] = (), **environ: str) -> tuple[int, str, str]:
        process = self.start(*words, options=options, **environ)
        out, err = process.communicate("", timeout=PATIENCE)
        return process.returncode, out, err

    def python(self, text: str, **environ: Any) -> tuple[int, str, str]:
        return self.run(sys.executable, "-c", SEEN + text, **environ)

    def of(self, stage: str, name: str) -> list[dict[str, Any]]:
        found = [event for event in events(self.spool) if event["stage"] == stage and event.get("name") == name]
        return sorted(found, key=lambda event: event["mono_ns"])


@pytest.fixture
def tracing(tmp_path: Path) -> Iterator[Tracing]:
    made = Tracing(tmp_path)
    yield made
    for process in made.started:
        with process, contextlib.suppress(ProcessLookupError):  # a failed test leaves some
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["true"], 0, ""),
        (["sh", "-c", "echo told >&2; exit 3"], 3, "told\n"),
        (["sh", "-c", "kill -KILL $$"], 128 + signal.SIGKILL, ""),
        (["sh", "-c", "kill -PIPE $$"], 128 + signal.SIGPIPE, ""),
        (["no-such-command"], 127, "imagefs: no-such-command: No such file or directory\n"),
        (["/etc/passwd"], 126, "imagefs: /etc/passwd: Permission denied\n"),
    ],
)
def test_the_status_is_that_of_the_command(tracing: Tracing, words: list[str], code: int, said: str) -> None:
    assert tracing.run(*words) == (code, "", said)
    begin, end = tracing.of("setup", words[0].rsplit("/", 1)[-1])
    assert (begin["event"], end["event"], end["span"]) == ("begin", "end", begin["span"])
    assert end["facts"] == ({"error": "OSError"} if code in (126, 127) else {"status": code})


def test_no_end_of_a_command_is_missed(tracing: Tracing) -> None:
    """The kernel may give the signal to any thread of the tracer, that of an outer tracer's timing as well."""
    for _ in range(20):
        assert tracing.run("true", options=("--no-imports",)) == (0, "", "")
    for _ in range(10):
        assert tracing.run(str(program("imagefs")), "startup", "trace", "--", "true") == (0, "", "")


def test_signals_are_passed_on(tracing: Tracing) -> None:
    text = "trap 'echo hup' HUP; trap 'echo end; exit 9' TERM; echo ready; while :; do sleep 0.01; done"
    process = tracing.start("sh", "-c", text)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGHUP)
    assert process.stdout.readline() == "hup\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=PATIENCE) == ("end\n", "")
    assert process.returncode == 9


def test_the_command_runs_as_without_it(tracing: Tracing, tmp_path: Path) -> None:
    """Signals as they were, its own sitecustomize, a sys.path without ours, one trace with what is above."""
    (tmp_path / "sitecustomize.py").write_text("theirs = 1\n")
    text = """
import signal, sys
import sitecustomize
print(sitecustomize.theirs, [path for path in sys.path if "injected" in path])
print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(os.environ["TRACEPARENT"])
"""
    code, out, err = tracing.python(text, PYTHONPATH=str(tmp_path), TRACEPARENT=TRACE)
    assert (code, err) == (0, "")
    *lines, handed = out.splitlines()
    assert lines == ["1 []", "True set()"]
    begin = tracing.of("setup", Path(sys.executable).name)[0]
    assert begin["parent"] == "b" * 16
    assert handed == f"00-{'4' * 32}-{begin['span']}-01"
    assert {(event["run"], event["trace"]) for event in events(tracing.spool)} == {("4" * 32, "4" * 32)}


def test_programs_installers_checkpoints_and_imports_are_seen(tracing: Tracing, tmp_path: Path) -> None:
    (tmp_path / "pip").write_text(f"#!{sys.executable}\n{SEEN}\nuntil('dependencies')")
    (tmp_path / "pip").chmod(0o755)
    (tmp_path / "model.safetensors").write_bytes(b"x" * 8192)
    job = f"""
import mmap
import email.message
with open({str(tmp_path / "model.safetensors")!r}, "rb") as file:
    kept = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    until('model.safetensors"')
open({str(tmp_path / "written.safetensors")!r}, "wb").close()
print(seen('"end","seq":0,"stage":"checkpoint'))
kept.close()
until("within_ns")
"""
    (tmp_path / "job.py").write_text(SEEN + job)
    script = f"RANK=5 {tmp_path}/pip install x && RANK=7 exec {sys.executable} {tmp_path}/job.py"
    code, out, err = tracing.run("bash", "-c", script, BOOTSEER_JOB="train", BOOTSEER_NODE="n1")
    assert (code, err) == (0, "")
    assert out == "False\n"
    root = tracing.of("setup", "bash")[0]
    for stage, name, rank in (("dependencies", "pip", 5), ("checkpoint", str(tmp_path / "model.safetensors"), 7)):
        begin, end = tracing.of(stage, name)
        assert (begin["event"], begin["rank"], begin["parent"]) == ("begin", rank, root["span"])
        assert (end["event"], end["span"], end["rank"]) == ("end", begin["span"], rank)
    assert not tracing.of("checkpoint", str(tmp_path / "written.safetensors"))
    names = [event["name"] for event in events(tracing.spool) if event["stage"] == "setup" and "name" in event]
    assert names.index("exec bash") < names.index("exec pip") < names.index("exec job.py")
    assert {"exit bash", "exit pip", "exit job.py"} <= set(names)
    (imports,) = {event["rank"] for event in tracing.of("imports", "email")}
    assert imports == 7
    assert {(event["job"], event["node"]) for event in events(tracing.spool)} == {("train", "n1")}


def test_a_file_that_a_process_was_born_with_is_no_read_of_its_own(tracing: Tracing, tmp_path: Path) -> None:
    """As workers of a data loader have, and what they start, also when the one that opened it has closed it."""
    model = tmp_path / "model.safetensors"
    model.write_bytes(b"x")
    text = f"""
import subprocess
with open({str(model)!r}, "rb") as file:
    until('model.safetensors"')
    script = "sh -c 'read x' && :"
    worker = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, pass_fds=[file.fileno()])
    until("sh -c read x")
while not any(open(path).read().count('model.safetensors"') > 1 for path in glob.glob({str(tracing.spool / "*")!r})):
    time.sleep(0.01)
worker.communicate(b"go")
until("exit sh")
"""
    assert tracing.python(text)[0] == 0
    assert [event["event"] for event in tracing.of("checkpoint", str(model))] == ["begin", "end"]


@pytest.mark.mount
def test_any_file_of_a_stripefs_mount_is_a_checkpoint(tracing: Tracing, mounts: Mounts, tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "shard-0").write_bytes(b"x" * 100_000)
    mount = mounts.mount(str(tmp_path / "shards"))
    file = mount.path / "shard-0"
    code, _, err = tracing.python(f"with open({str(file)!r}, 'rb') as file:\n    file.read()\n    until('shard-0\"')")
    assert (code, err) == (0, "")
    assert [event["event"] for event in tracing.of("checkpoint", str(file))] == ["begin", "end"]


def test_the_start_is_over_when_the_file_appears(tracing: Tracing, tmp_path: Path) -> None:
    text = f"{SEEN}\nopen({str(tmp_path / 'ready')!r}, 'w')\nuntil('\"ready\"')"
    options = ("--ready-file", str(tmp_path / "ready"))
    assert tracing.run(sys.executable, "-c", text, options=options) == (0, "", "")
    assert [event["event"] for event in events(tracing.spool) if event["stage"] == "ready"] == ["instant"]


def test_a_file_of_an_earlier_start_says_nothing(tracing: Tracing, tmp_path: Path) -> None:
    (tmp_path / "ready").touch()
    os.utime(tmp_path / "ready", (1, 1))
    options = ("--ready-file", str(tmp_path / "ready"))
    assert tracing.run("true", options=options)[0] == 0
    assert not [event for event in events(tracing.spool) if event["stage"] == "ready"]
    assert tracing.run("touch", str(tmp_path / "ready"), options=options)[0] == 0
    assert [event for event in events(tracing.spool) if event["stage"] == "ready"]


def test_ranks_belong_to_the_start_of_the_tracer(tracing: Tracing) -> None:
    """Torchrun calls each run `none` that is given no name."""
    text = "from stripefs.startup_events import default_writer as w; w().instant('ready')"
    line = ["env", "TORCHELASTIC_RUN_ID=none", "RANK=2", sys.executable, "-c", text]
    assert tracing.run(*line, SLURM_JOB_ID="7", SLURM_JOB_NAME="train")[0] == 0
    assert {(event["job"], event["run"]) for event in events(tracing.spool)} == {("train", "7")}
    assert {event["rank"] for event in events(tracing.spool) if event["source"] == "job"} == {2}


def test_events_that_cannot_be_written_are_told_and_cost_nothing(tracing: Tracing) -> None:
    tracing.spool = Path("/dev/null/spool")
    code, out, err = tracing.run("sh", "-c", "echo out; exit 4")
    assert (code, out) == (4, "out\n")
    assert err == "imagefs startup trace: events are lost: /dev/null/spool: Not a directory\n"


def test_a_spool_on_fuse_is_refused(tracing: Tracing, mounts: Mounts, tmp_path: Path) -> None:
    """Its server is stopped: who asks it waits for ever, and could not be ended had it taken the request."""
    (tmp_path / "shards").mkdir()
    mount = mounts.mount(str(tmp_path / "shards"))
    os.kill(mount.worker(), signal.SIGSTOP)
    try:
        (tmp_path / "link").symlink_to(mount.path / "deep")
        tracing.spool = tmp_path / "link" / "spool"
        code, _, err = tracing.run("true")
        assert code == 0
        assert err.endswith(f"{mount.path} is a FUSE mount; use a folder on a local disk\n")
    finally:
        os.kill(mount.worker(), signal.SIGCONT)


def test_the_first_use_of_an_accelerator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_ACCELERATOR", re.compile("/dev/zero"))
    writer = Writer(str(tmp_path), ProcessIdentity("job", "run", 0, "node"), "trace")
    command = "read; exec 3</dev/zero; sleep 1000 & echo $!; read; kill $!"
    others = os.listdir("/proc")
    job = subprocess.Popen(["bash", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert job.stdin is not None
    assert job.stdout is not None
    watcher = Watcher(writer, job.pid, writer.identity, "a" * 16, 0, others)
    watcher.look()
    assert not [event for event in events(tmp_path) if event["name"] == "accelerator"]
    print(file=job.stdin, flush=True)
    child = int(job.stdout.readline())
    eventually(lambda: b"sleep" in Path(f"/proc/{child}/cmdline").read_bytes(), "the child")
    for _ in range(3):
        watcher.look()
    print(file=job.stdin, flush=True)
    job.communicate(timeout=PATIENCE)
    watcher.look()
    assert writer.close(PATIENCE)
    found = [event["facts"] for event in events(tmp_path) if event["name"] == "accelerator"]
    assert [(facts["process"], facts["device"]) for facts in found] == [(job.pid, "/dev/zero"), (child, "/dev/zero")]


def test_a_process_that_is_just_executed_is_not_taken_for_one_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its command line is empty for a moment."""
    writer, others, read = Writer(str(tmp_path), ProcessIdentity(), "trace"), os.listdir("/proc"), processes._read
    with subprocess.Popen(["sleep", "1000"]) as job:
        watcher = Watcher(writer, job.pid, writer.identity, "a" * 16, 0, others)
        monkeypatch.setattr(processes, "_read", lambda pid, name, *most: name != "cmdline" and read(pid, name, *most))
        watcher.look()
        monkeypatch.undo()
        eventually(lambda: b"sleep" in Path(f"/proc/{job.pid}/cmdline").read_bytes(), "the command")
        watcher.look()
        job.kill()
    watcher.look()
    assert writer.close(PATIENCE)
    assert [event["name"] for event in events(tmp_path)] == ["exec sleep", "exit sleep"]


def test_the_programs_of_command_lines() -> None:
    lines = {
        "/usr/bin/python3.11 -u -m torch.distributed.run train.py": "torch.distributed.run",
        "python -c x": "python",
        "python3 -X dev -W error /srv/train.py --lr 3": "train.py",
        "/bin/sh script": "sh",
    }
    assert {line: processes._program(shlex.split(line)) for line in lines} == lines
