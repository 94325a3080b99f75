"""The installed command against real mounts: what it prints, what it leaves, what it answers the shell."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stripefs.cli.main import PROGRAM
from stripefs.fuse import kernel, mounting
from stripefs.fuse.control import find_mounts, log_file, runtime_directory
from tests.support.mount_namespace import unshared
from tests.support.refusals import refused
from tests.support.waiting import gone
from tests.tools.mounts import MIB, PATIENCE, eventually, sha256, workers_of

pytestmark = pytest.mark.mount

Done = subprocess.CompletedProcess[str]


class Shell:
    """Runs the installed commands in `folder`, with a source of two files and an empty mountpoint `mnt`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source, self.mountpoint, self.log = folder / "source", folder / "mnt", folder / "log"
        (self.source / "deep").mkdir(parents=True)
        self.mountpoint.mkdir()
        (self.source / "deep/big").write_bytes(os.urandom(5 * MIB + 1))
        (self.source / "small").write_bytes(b"small\n")
        clean = {name: value for name, value in os.environ.items() if not name.startswith("STRIPEFS_")}
        self.environ = clean | {"HOME": str(folder), "STRIPEFS_LOG_FILE": str(self.log)}
        self.children: list[subprocess.Popen[str]] = []

    def arguments(self, name: str, *arguments: object) -> list[str]:
        return [str(Path(sys.executable).with_name(name)), *map(str, arguments)]

    def run(self, *arguments: object, name: str = "stripefs") -> Done:
        return subprocess.run(
            self.arguments(name, *arguments),
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
        )

    def start(self, *arguments: object, **environ: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            self.arguments("stripefs", *arguments),
            cwd=self.folder,
            env=self.environ | environ,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.children.append(child)
        return child

    def mount(self, *options: object, source: str = "source") -> None:
        done = self.run("mount", source, "mnt", "--memory", "64MiB", *options)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def status(self) -> dict[str, Any]:
        (answer,) = json.loads(self.run("status", "mnt", "--json").stdout)
        return dict(answer)

    def supervisor(self) -> int:
        return next(mount.supervisor_pid for mount in find_mounts() if mount.mountpoint == str(self.mountpoint))

    def is_mounted(self) -> bool:
        return kernel.find_mount(str(self.mountpoint)) is not None

    def close(self) -> None:
        while (mount := kernel.find_mount(str(self.mountpoint))) is not None:
            kernel.abort(mount.connection)
            if os.geteuid() == 0:
                kernel.unmount(mount.path, kernel.MNT_DETACH)
            else:
                mounting.unmount_unprivileged(mount.path, lazy=True)
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.communicate()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with contextlib.closing(Shell(tmp_path)) as made:
        yield made


def test_mount_read_and_unmount(shell: Shell) -> None:
    del shell.environ["STRIPEFS_LOG_FILE"]
    shell.mount()
    assert log_file(str(shell.mountpoint)).exists()
    supervisor = shell.supervisor()
    assert sha256(shell.mountpoint / "deep/big") == sha256(shell.source / "deep/big")
    assert sorted(os.listdir(shell.mountpoint)) == ["deep", "small"]
    mount = kernel.find_mount(str(shell.mountpoint))
    assert mount is not None
    assert (mount.fstype, mount.source, mount.options.split(",")[0]) == ("fuse.stripefs", str(shell.source), "ro")
    second = shell.run("mount", "source", "mnt")
    assert second.returncode == 32
    assert "busy" in second.stderr
    assert f"pid {supervisor}" in second.stderr
    assert shell.status()["generation"] == 1  # the refused one did not take its control socket away

    done = shell.run("umount", "mnt")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not shell.is_mounted()
    assert gone(supervisor)
    assert not workers_of(str(shell.mountpoint))
    assert os.listdir(shell.mountpoint) == []
    eventually(lambda: not log_file(str(shell.mountpoint)).exists(), "the log that nobody named to be removed")


def test_status_and_metrics_tell_what_the_mount_does(shell: Shell) -> None:
    """A file, the environment and the command line configure it."""
    file = shell.folder / ".config/bootseer/stripefs.toml"
    file.parent.mkdir(parents=True)
    file.write_text('version = 1\n[read]\nrange-size = "1MiB"\nthreads = 3\n')
    shell.environ["STRIPEFS_THREADS"] = "4"
    address = f"127.0.0.1:{free_port()}"
    shell.mount("--metrics", address, source=f"throttled+file://{shell.source}?hosts=3&rate=1GB/s")
    (shell.mountpoint / "deep/big").read_bytes()
    status = shell.status()
    assert status["mountpoint"] == str(shell.mountpoint)
    assert status["requests"]["read_bytes"] == 5 * MIB + 1
    assert (status["reader"]["threads"], status["settings"]["read"]["range_size"]) == (4, MIB)
    assert {host["name"] for host in status["reader"]["hosts"]} <= {"h0", "h1", "h2"}
    assert (status["generation"], status["restarts"]) == (1, 0)
    page = shell.run("status").stdout
    for text in (f" on {shell.mountpoint}\n", "generation 1, 0 restarts", "read_ahead_kb", "of 64 MiB", "data host"):
        assert text in page
    assert str(shell.mountpoint) in [entry["mountpoint"] for entry in json.loads(shell.run("status", "--json").stdout)]
    samples = scraped(address)
    assert "stripefs_sent_bytes_total" not in samples
    assert samples["stripefs_served_bytes_total"] == samples["stripefs_read_bytes_total"] == 5 * MIB + 1
    assert samples["stripefs_start_time_seconds"] > 1e9
    (shell.folder / "other").mkdir()
    taken = shell.run("mount", "source", "other", "--metrics", address)
    assert taken.returncode != 0
    assert address in taken.stderr


def test_status_and_metrics_tell_what_is_written(shell: Shell) -> None:
    address = f"127.0.0.1:{free_port()}"
    source = f"throttled+file://{shell.source}?hosts=3&rate=1GB/s"
    shell.mount("--rw", "--layout", "striped", "--unit", "1MiB", "--metrics", address, source=source)
    (shell.mountpoint / "done").write_bytes(bytes(12 * MIB))
    with open(shell.mountpoint / "model", "wb", buffering=0) as model:
        model.write(bytes(3 * MIB))
        status = shell.status()
        page = shell.run("status").stdout
        samples = scraped(address)
    writer = status["writer"]
    assert status["requests"]["written_bytes"] == samples["stripefs_written_bytes_total"] == 15 * MIB
    assert [(draft["path"], draft["length"], draft["memory"]) for draft in writer["drafts"]] == [
        ("/model", 3 * MIB, 3 * MIB)
    ]
    assert writer["published_versions"] == samples["stripefs_published_versions_total"] == 1
    assert (writer["errors"], writer["lost"], writer["last_error"]) == ({}, {}, None)
    assert {host["name"] for host in writer["hosts"]} == {"h0", "h1", "h2"}
    assert sum(host["bytes"] for host in writer["hosts"]) == writer["sent_bytes"] > 12 * MIB
    assert samples["stripefs_write_memory_used_bytes"] == 3 * MIB
    for text in ("15 MiB so far", "1 file open", "1 version\n", "\nwrite errors ", "file being written", "\nh2 "):
        assert text in page


@pytest.mark.slow
def test_probe_inside_a_mount_asks_it_for_its_source(shell: Shell) -> None:
    url = f"throttled+file://{shell.source}?hosts=3&rate=1GB/s"
    shell.mount("--range-size", "1MiB", source=url)
    for path, inside in (("mnt/deep/big", "/deep/big"), ("mnt/deep", "/deep/big"), ("mnt", "/small")):
        done = shell.run("probe", path, "--size", "1MiB", "--per-host", "2", "--json")
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert (answer["source"], answer["path"]) == (url, inside)
        assert "limit" in answer
    assert "no such file" in shell.run("probe", "mnt/none").stderr.lower()


def test_a_busy_mount_is_left_alone_unless_lazily(shell: Shell) -> None:
    shell.mount()
    supervisor = shell.supervisor()
    with open(shell.mountpoint / "small", "rb") as held:
        done = shell.run("umount", "mnt")
        assert (done.returncode, done.stdout) == (32, "")
        assert done.stderr.startswith(f"stripefs: {shell.mountpoint} is busy: process {os.getpid()} (")
        assert shell.is_mounted()
        done = shell.run("umount", "--lazy", "mnt")
        assert (done.returncode, done.stderr) == (0, "")
        assert not shell.is_mounted()
        assert held.read() == b"small\n"
        assert not gone(supervisor)
    eventually(lambda: gone(supervisor), "the supervisor's end after the last close")


def test_a_dead_mount_is_told_and_cleared(shell: Shell) -> None:
    shell.mount()
    supervisor = shell.supervisor()
    os.kill(supervisor, signal.SIGKILL)
    eventually(lambda: gone(supervisor) and not workers_of(str(shell.mountpoint)), "the end of its processes")
    assert shell.is_mounted()
    with refused(errno.ENOTCONN):
        os.listdir(shell.mountpoint)
    assert str(shell.mountpoint) not in {mount.mountpoint for mount in find_mounts()}
    assert not any(str(shell.mountpoint) in file.read_text() for file in runtime_directory().glob("*.json"))
    status = shell.run("status", "mnt")
    assert status.returncode == 32
    assert "stripefs umount" in status.stderr
    again = shell.run("mount", "source", "mnt")
    assert again.returncode == 32
    assert "umount" in again.stderr
    done = shell.run("umount", "mnt")
    assert (done.returncode, done.stderr) == (0, "")
    assert not shell.is_mounted()
    shell.mount()


def test_a_mount_of_another_user_is_not_called_dead(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.mount()
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 4321)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(shell.folder))
    assert PROGRAM.main(["status", str(shell.mountpoint)]) == 32
    assert f"belongs to user {os.geteuid()}; ask as that user" in capsys.readouterr().err
    assert PROGRAM.main(["status"]) == 0
    assert capsys.readouterr().out == "no mounts\n"


def test_what_cannot_be_mounted_leaves_nothing(shell: Shell) -> None:
    (shell.folder / "file").write_text("")
    cases: list[tuple[int, str, tuple[object, ...]]] = [
        (3, "No such file or directory", ("mount", "nowhere", "mnt")),
        (3, "Not a directory", ("mount", "file", "mnt")),
        (2, "unknown scheme", ("mount", "ftp://a/b", "mnt")),
        (2, "nosuch", ("mount", "source", "mnt", "-o", "nosuch")),
        (2, "is not a loopback address", ("mount", "source", "mnt", "--metrics", "0.0.0.0:0")),
        (32, "mkdir -p", ("mount", "source", "none")),
        (32, "is not a directory", ("mount", "source", "file")),
        (32, "is not empty", ("mount", "source", "source")),
    ]
    for code, words, arguments in cases:
        done = shell.run(*arguments)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done
        assert done.stderr.startswith("stripefs: ")
        assert words in done.stderr, done
        assert not shell.log.exists()
    assert not shell.is_mounted()
    assert not workers_of(str(shell.mountpoint))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_in_the_foreground_it_logs_and_tells_systemd(shell: Shell, number: signal.Signals) -> None:
    address = str(shell.folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.settimeout(PATIENCE)
        child = shell.start(
            "mount", "source", "mnt", "-f", "--log-format", "json", NOTIFY_SOCKET=address, STRIPEFS_LOG_FILE=""
        )
        assert systemd.recv(64) == b"READY=1"
    assert (shell.mountpoint / "small").read_bytes() == b"small\n"
    child.send_signal(number)
    _, err = child.communicate(timeout=PATIENCE)
    assert child.returncode == 0
    assert not shell.is_mounted()
    assert not workers_of(str(shell.mountpoint))
    lines = [json.loads(line) for line in err.splitlines()]
    assert any("is mounted at" in line["message"] for line in lines)
    assert {line["level"] for line in lines} == {"info"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def scraped(address: str) -> dict[str, float]:
    """The page of metrics; of those with labels any one value."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE) as answer:
        text = answer.read().decode()
    return {s.name: s.value for family in text_string_to_metric_families(text) for s in family.samples}


@pytest.mark.root
def test_mount_8_finds_the_helper(shell: Shell) -> None:
    """In a mount namespace of its own, where /sbin is a writable overlay that has the link of docs/config.md."""
    script = """
        set -e
        mount -t tmpfs tmpfs "$1" && mkdir "$1/upper" "$1/work"
        sbin=$(readlink -f /sbin)
        mount -t overlay overlay -o "lowerdir=$sbin,upperdir=$1/upper,workdir=$1/work" "$sbin"
        ln -s "$2" /sbin/mount.stripefs
        echo "$3 $4 stripefs ro,noauto,_netdev,nofail,noexec,umask=077 0 0" > "$1/fstab"
        mount --fstab "$1/fstab" "$4"
        stat -c %a "$4/small" && cat "$4/small" && grep " $4 " /proc/mounts
        umount "$4"
    """
    room = shell.folder / "room"
    room.mkdir()
    helper = Path(sys.executable).with_name("mount.stripefs")
    done = subprocess.run(
        unshared(shell.folder, "bash", "-c", script, "bash", *map(str, (room, helper, shell.source, shell.mountpoint))),
        env=shell.environ,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    mode, content, mount = done.stdout.splitlines()
    assert (mode, content) == ("600", "small")
    assert mount.split()[2] == "fuse.stripefs"
    assert {"ro", "noexec", "nosuid", "nodev", "allow_other"} <= set(mount.split()[3].split(","))
    eventually(lambda: not workers_of(str(shell.mountpoint)), "the end of the worker after umount(8)")


@pytest.mark.root
def test_every_word_for_the_kernel_is_one_the_mount_takes(shell: Shell) -> None:
    words = "exec,suid,dev,sync,dirsync,noatime,nodiratime,relatime,nonempty"
    shell.mount("-o", words)
    assert shell.run("umount", "mnt").returncode == 0
    shell.mount("-o", "noexec,nosuid,nodev,strictatime,default_permissions,defaults,lazytime")
    assert shell.run("umount", "mnt").returncode == 0
