"""The installed command against real mounts: what it prints, what it leaves, what it answers the shell."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stripefs.cli.main import PROGRAM
from stripefs.fuse import kernel
from stripefs.fuse.control import find_mounts, log_file, runtime_directory
from tests.contract.commands import program
from tests.hdfs.conftest import place
from tests.support.mount_namespace import unshared
from tests.support.refusals import refused
from tests.tools.command import REPLACED, Place
from tests.tools.listening import free_port
from tests.tools.mounts import MIB, PATIENCE, eventually, sha256, workers_of

__all__ = ["place"]

pytestmark = pytest.mark.mount


@pytest.fixture
def shell(place: Place) -> Place:
    """With a source of two files and an empty mountpoint `mnt`."""
    (place.folder / "mnt").mkdir()
    (place.folder / "source/deep").mkdir(parents=True)
    (place.folder / "source/deep/big").write_bytes(os.urandom(5 * MIB + 1))
    (place.folder / "source/small").write_bytes(b"small\n")
    return place


def test_mount_read_and_unmount(shell: Place) -> None:
    live, source = shell.mount("source", "--log-file", ""), shell.folder / "source"
    assert log_file(str(live.path)).exists()
    assert sha256(live.path / "deep/big") == sha256(source / "deep/big")
    assert sorted(os.listdir(live.path)) == ["deep", "small"]
    mount = kernel.find_mount(str(live.path))
    assert mount is not None
    assert (mount.fstype, mount.source, mount.options.split(",")[0]) == ("fuse.stripefs", str(source), "ro")
    second = shell.run("mount", "source", live.path)
    assert second.returncode == 32
    assert "busy" in second.stderr
    assert f"pid {live.supervisor}" in second.stderr
    assert live.told_status()["generation"] == 1  # the refused one did not take its control socket away

    live.umount()
    assert not live.in_table()
    assert live.ended()
    assert not workers_of(str(live.path))
    assert os.listdir(live.path) == []
    eventually(lambda: not log_file(str(live.path)).exists(), "the log that nobody named to be removed")


def test_status_and_metrics_tell_what_the_mount_does(shell: Place) -> None:
    """A file, the environment and the command line configure it."""
    file = shell.folder / ".config/bootseer/stripefs.toml"
    file.parent.mkdir(parents=True)
    file.write_text('version = 1\n[read]\nrange-size = "1MiB"\nthreads = 3\n')
    shell.environ["STRIPEFS_THREADS"] = "4"
    address = f"127.0.0.1:{free_port()}"
    url = f"throttled+file://{shell.folder}/source?hosts=3&rate=1GB/s"
    live = shell.mount(url, "--metrics", address, "--memory", "64MiB")
    (live.path / "deep/big").read_bytes()
    status = live.told_status()
    assert status["mountpoint"] == str(live.path)
    assert status["requests"]["read_bytes"] == 5 * MIB + 1
    assert (status["reader"]["threads"], status["settings"]["read"]["range_size"]) == (4, MIB)
    assert {host["name"] for host in status["reader"]["hosts"]} <= {"h0", "h1", "h2"}
    assert (status["generation"], status["restarts"]) == (1, 0)
    page = shell.run("status").stdout
    for text in (f" on {live.path}\n", "generation 1, 0 restarts", "read_ahead_kb", "of 64 MiB", "data host"):
        assert text in page
    assert str(live.path) in [entry["mountpoint"] for entry in json.loads(shell.run("status", "--json").stdout)]
    samples = scraped(address)
    assert "stripefs_sent_bytes_total" not in samples
    assert samples["stripefs_served_bytes_total"] == samples["stripefs_read_bytes_total"] == 5 * MIB + 1
    assert samples["stripefs_start_time_seconds"] > 1e9
    shell.forgive(REPLACED)
    live.kill_worker()
    assert scraped(address)["stripefs_worker_restarts_total"] == 1
    taken = shell.run("mount", "source", "mnt", "--metrics", address)
    assert taken.returncode != 0
    assert address in taken.stderr


def test_status_and_metrics_tell_what_is_written(shell: Place) -> None:
    address, url = f"127.0.0.1:{free_port()}", f"throttled+file://{shell.folder}/source?hosts=3&rate=1GB/s"
    live = shell.mount(url, "--rw", "--layout", "striped", "--unit", "1MiB", "--metrics", address)
    (live.path / "done").write_bytes(bytes(12 * MIB))
    with open(live.path / "model", "wb", buffering=0) as model:
        model.write(bytes(3 * MIB))
        status, page, samples = live.told_status(), shell.run("status").stdout, scraped(address)
    writer = status["writer"]
    assert status["requests"]["written_bytes"] == samples["stripefs_written_bytes_total"] == 15 * MIB
    assert [(one["path"], one["length"], one["memory"]) for one in writer["drafts"]] == [("/model", 3 * MIB, 3 * MIB)]
    assert writer["published_versions"] == samples["stripefs_published_versions_total"] == 1
    assert sum(host["bytes"] for host in writer["hosts"]) == samples["stripefs_sent_bytes_total"] > 12 * MIB
    assert samples["stripefs_write_memory_used_bytes"] == 3 * MIB
    for text in ("15 MiB so far", "1 file open", "1 version\n", "\nwrite errors ", "file being written", "\nh2 "):
        assert text in page


def test_probe_inside_a_mount_asks_it_for_its_source(shell: Place) -> None:
    url = f"throttled+file://{shell.folder}/source?hosts=3&rate=1GB/s"
    live = shell.mount(url, "--range-size", "1MiB")
    done = shell.run("probe", live.path / "deep", "--size", "1MiB", "--per-host", "2", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["source"], answer["path"], "limit" in answer) == (url, "/deep/big", True)


def test_a_busy_mount_is_left_alone_unless_lazily(shell: Place) -> None:
    live = shell.mount("source")
    with open(live.path / "small", "rb") as held:
        done = shell.run("umount", live.path)
        assert (done.returncode, done.stdout) == (32, "")
        assert done.stderr.startswith(f"stripefs: {live.path} is busy: process {os.getpid()} (")
        assert live.in_table()
        done = shell.run("umount", "--lazy", live.path)
        assert (done.returncode, done.stderr) == (0, "")
        assert not live.in_table()
        assert held.read() == b"small\n"
        assert not live.ended()
    eventually(live.ended, "the supervisor's end after the last close")


def test_a_dead_mount_is_told_and_cleared(shell: Place) -> None:
    live = shell.mount("source")
    os.kill(live.supervisor, signal.SIGKILL)
    eventually(lambda: live.ended() and not workers_of(str(live.path)), "the end of its processes")
    assert live.in_table()
    with refused(errno.ENOTCONN):
        os.listdir(live.path)
    assert str(live.path) not in {mount.mountpoint for mount in find_mounts()}
    assert not any(str(live.path) in file.read_text() for file in runtime_directory().glob("*.json"))
    for command in (("status", live.path), ("mount", "source", live.path)):
        done = shell.run(*command)
        assert done.returncode == 32
        assert "umount" in done.stderr
    live.umount()
    assert not live.in_table()
    for command in (("mount", "source", live.path), ("umount", live.path)):
        assert shell.run(*command).returncode == 0


def test_a_mount_of_another_user_is_not_called_dead(
    shell: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shell.mount("source").path
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 4321)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(shell.folder))
    assert PROGRAM.main(["status", str(path)]) == 32
    assert f"belongs to user {os.geteuid()}; ask as that user" in capsys.readouterr().err
    assert PROGRAM.main(["status"]) == 0
    assert capsys.readouterr().out == "no mounts\n"


def test_what_cannot_be_mounted_leaves_nothing(shell: Place) -> None:
    shell.environ["STRIPEFS_LOG_FILE"] = str(shell.folder / "log")
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
        assert not (shell.folder / "log").exists()
    assert kernel.find_mount(str(shell.folder / "mnt")) is None
    assert not workers_of(str(shell.folder / "mnt"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_in_the_foreground_it_logs_and_tells_systemd(shell: Place, number: signal.Signals) -> None:
    address, mountpoint = str(shell.folder / "notify"), shell.folder / "mnt"
    command = [str(program("stripefs")), "mount", "source", "mnt", "-f", "--log-format", "json"]
    environ = shell.environ | {"NOTIFY_SOCKET": address}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.settimeout(PATIENCE)
        child = subprocess.Popen(command, cwd=shell.folder, env=environ, stderr=subprocess.PIPE, text=True)
        assert systemd.recv(64) == b"READY=1"
    assert (mountpoint / "small").read_bytes() == b"small\n"
    child.send_signal(number)
    _, err = child.communicate(timeout=PATIENCE)
    assert child.returncode == 0
    assert kernel.find_mount(str(mountpoint)) is None
    assert not workers_of(str(mountpoint))
    lines = [json.loads(line) for line in err.splitlines()]
    assert any("is mounted at" in line["message"] for line in lines)
    assert {line["level"] for line in lines} == {"info"}


def scraped(address: str) -> dict[str, float]:
    """The page of metrics; of those with labels any one value."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE) as answer:
        text = answer.read().decode()
    return {s.name: s.value for family in text_string_to_metric_families(text) for s in family.samples}


@pytest.mark.root
def test_mount_8_finds_the_helper(shell: Place) -> None:
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
    room, mountpoint = shell.folder / "room", shell.folder / "mnt"
    room.mkdir()
    words = (room, program("mount.stripefs"), shell.folder / "source", mountpoint)
    done = subprocess.run(
        unshared(shell.folder, "bash", "-c", script, "bash", *map(str, words)),
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
    eventually(lambda: not workers_of(str(mountpoint)), "the end of the worker after umount(8)")


@pytest.mark.root
def test_every_word_for_the_kernel_is_one_the_mount_takes(shell: Place) -> None:
    words = "exec,suid,dev,sync,dirsync,noatime,nodiratime,relatime,nonempty"
    shell.mount("source", "-o", words).umount()
    shell.mount("source", "-o", "noexec,nosuid,nodev,strictatime,default_permissions,defaults,lazytime").umount()
