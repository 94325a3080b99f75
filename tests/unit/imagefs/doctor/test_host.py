"""Findings about a host: its rights, runtimes, cache, services, and its kernel, by what was tried or by its version."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefs.doctor import CheckResult, host, services
from imagefs.doctor.host import (
    TRIALS,
    cache_findings,
    file_system_of,
    judge_kernel,
    release,
    rights_findings,
    runtime_findings,
)
from imagefs.doctor.services import daemon_findings, snapshotter_findings, speaks_http2
from imagefs.settings import DaemonSettings
from stripefs.fuse import kernel


def states(findings: list[CheckResult]) -> dict[str, str]:
    return {one.check: one.state for one in findings}


def mounted(path: str, fstype: str) -> kernel.MountPoint:
    return kernel.MountPoint(path, "0:1", fstype, "none", "", "")


def test_a_device_that_cannot_be_opened_is_a_failure(tmp_path: Path) -> None:
    assert states(rights_findings(str(tmp_path / "fuse")))["rights.fuse"] == "fail"
    assert states(rights_findings("/dev/null"))["rights.fuse"] == "ok"


@pytest.mark.parametrize(
    ("files", "state"),
    [
        ({"cgroup.controllers": "cpuset cpu io memory pids\n"}, "ok"),
        ({"cgroup.controllers": "cpu\n"}, "warn"),
        ({"cpu/x": "", "memory/x": "", "pids/x": ""}, "ok"),
        ({"memory/x": ""}, "warn"),
        ({}, "warn"),
    ],
)
def test_cgroups_of_both_versions(tmp_path: Path, files: dict[str, str], state: str) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert states(rights_findings("/dev/null", str(tmp_path)))["rights.cgroup"] == state


def test_runtimes_are_looked_for(tmp_path: Path) -> None:
    assert states(runtime_findings(str(tmp_path))) == {"runtime.oci": "warn", "runtime.skopeo": "warn"}
    for name in ("crun", "skopeo"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    assert states(runtime_findings(str(tmp_path))) == {"runtime.oci": "ok", "runtime.skopeo": "ok"}


def test_the_file_system_of_a_folder_is_that_of_the_deepest_and_last_mount() -> None:
    table = [mounted("/", "ext4"), mounted("/var", "xfs"), mounted("/var/cache", "tmpfs"), mounted("/var/cache", "nfs")]
    assert [file_system_of(path, table) for path in ("/srv", "/var/lib", "/various", "/var/cache/x", "/var/cache")] == [
        "ext4", "xfs", "ext4", "nfs", "nfs",
    ]  # fmt: skip
    assert file_system_of("/srv", []) == ""


@pytest.mark.parametrize(
    ("fstype", "state"), [("ext4", "ok"), ("xfs", "ok"), ("overlay", "warn"), ("tmpfs", "warn"), ("nfs4", "warn")]
)
def test_the_cache_belongs_on_a_local_disk(tmp_path: Path, fstype: str, state: str) -> None:
    assert states(cache_findings(str(tmp_path), 0, [mounted("/", fstype)]))["cache.folder"] == state


@pytest.mark.parametrize(("free", "wanted", "state"), [(1, 0, "fail"), (1 << 30, 0, "warn"), (1 << 40, 0, "ok"),
                                                       (1 << 40, 1 << 41, "warn")])  # fmt: skip
def test_the_cache_needs_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, wanted: int, state: str
) -> None:
    there = os.statvfs(tmp_path)
    made = os.statvfs_result((1, 1, *there[2:4], free, *there[5:]))
    monkeypatch.setattr(host.os, "statvfs", lambda _path: made)
    assert states(cache_findings(str(tmp_path), wanted, [mounted("/", "ext4")]))["cache.room"] == state


def test_a_cache_that_cannot_be_made_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert states(cache_findings(str(tmp_path / "file/cache"), 0)) == {"cache.folder": "fail"}


# The services


@contextlib.contextmanager
def server(path: Path, answer: bytes) -> Iterator[None]:
    """Somebody who listens there, and answers what a client says by `answer`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(64)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            with socket.socket(socket.AF_UNIX) as last, contextlib.suppress(OSError):  # where nobody came
                last.connect(str(path))
            thread.join()


SETTINGS = b"\0\0\6\4\0\0\0\0\0" + bytes(6)


@pytest.mark.parametrize(
    ("answer", "there"), [(SETTINGS, True), (b"HTTP/1.1 400 Bad Request\r\n\r\n", False), (b"", False)]
)
def test_only_a_server_of_http2_answers(tmp_path: Path, answer: bytes, there: bool) -> None:
    with server(tmp_path / "s.sock", answer):
        assert speaks_http2(str(tmp_path / "s.sock")) == (os.getpid() if there else None)


@pytest.mark.parametrize(("mode", "state"), [(0o600, "ok"), (0o660, "ok"), (0o666, "fail")])
def test_a_socket_that_everybody_reaches_is_a_failure(tmp_path: Path, mode: int, state: str) -> None:
    path = tmp_path / "s.sock"
    with server(path, SETTINGS):
        path.chmod(mode)
        assert states(snapshotter_findings(str(path), needed=True))["snapshotter.socket"] == state


def test_a_service_that_is_older_than_what_is_installed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.sock"
    path_of = {"older": services.runs_since(os.getpid()) + 5.0, "newer": services.runs_since(os.getpid()) - 5.0}
    for installed, state in (("older", "warn"), ("newer", "ok")):
        monkeypatch.setattr(services, "installed_at", lambda moment=path_of[installed]: moment)
        path.unlink(missing_ok=True)
        with server(path, SETTINGS):
            assert states(snapshotter_findings(str(path), needed=True))["snapshotter.version"] == state


@pytest.mark.parametrize(("needed", "state"), [(True, "fail"), (False, "warn")])
def test_services_that_do_not_run_are_failures_where_containerd_needs_them(
    tmp_path: Path, needed: bool, state: str
) -> None:
    settings = DaemonSettings(cache=str(tmp_path), runtime=str(tmp_path))
    assert states(daemon_findings(settings, needed=needed)) == {"daemon.running": state}
    assert states(snapshotter_findings(str(tmp_path / "none"), needed=needed)) == {"snapshotter.running": state}


# The kernel


GOOD = dict.fromkeys(TRIALS, "ok")


def judged(version: tuple[int, int], tried: dict[str, str]) -> dict[str, str]:
    return {one.check.removeprefix("kernel."): one.state for one in judge_kernel(version, tried)}


@pytest.mark.parametrize(
    ("version", "missing"),
    [
        ((6, 12), {}),
        ((6, 9), {"erofs-file": "warn"}),
        ((6, 1), {"erofs-file": "warn", "fuse-resend": "warn"}),
        ((5, 10), {"erofs-file": "warn", "erofs-loop": "fail", "overlay": "fail", "fuse-resend": "warn"}),
    ],
)
def test_where_nothing_could_be_tried_the_version_tells(version: tuple[int, int], missing: dict[str, str]) -> None:
    assert {name: state for name, state in judged(version, {}).items() if state != "ok"} == missing
    assert set(judged(version, GOOD).values()) == {"ok"}, "what was tried counts more"


def test_every_lack_has_a_cost_and_something_to_do_about_it() -> None:
    findings = judge_kernel((6, 18), dict.fromkeys(TRIALS, "Function not implemented"))
    assert [one.check for one in findings if not (one.cost and one.remedy)] == []
    assert all("Function not implemented" in one.found for one in findings)
    assert len(findings) == len(TRIALS)
    texts = ("6.18.44-fc-v669", "6.1.0-31-amd64", "5.10", "unknown")
    assert [release(text) for text in texts] == [(6, 18), (6, 1), (5, 10), (0, 0)]
