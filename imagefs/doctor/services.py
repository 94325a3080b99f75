"""The two services of a host: whether they answer, to whom, and whether they run what is installed."""

from __future__ import annotations

import os
import socket
import stat
import struct
import time
from importlib import metadata
from pathlib import Path

import stripefs
from imagefs.daemon import processes
from imagefs.daemon.client import Client
from imagefs.doctor.finding import CheckResult, CheckState
from imagefs.settings import DaemonSettings
from stripefs.errors import MountError

__all__ = ["daemon_findings", "installed_at", "runs_since", "snapshotter_findings", "speaks_http2"]

_ANSWERS_WITHIN = 10.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""The first bytes of a client of HTTP/2, and so of gRPC (RFC 9113, 3.4): the preface and an empty SETTINGS frame."""

_SETTINGS = 4


def daemon_findings(settings: DaemonSettings, *, needed: bool) -> list[CheckResult]:
    """needed: containerd's containers want it; else the first mount starts one."""
    try:
        status = Client(settings).status()
    except MountError as error:
        state: CheckState = "fail" if needed else "warn"
        cost = "containers that need blocks of the store wait, and new ones do not start" if needed else "none yet"
        remedy = "systemctl start imagefs (`imagefs install --enable`)" if needed else "`imagefs mount` starts one"
        return [CheckResult("daemon.running", state, error.message, cost, remedy)]
    findings = [CheckResult("daemon.running", "ok", f"the daemon answers (pid {status['supervisor_pid']})")]
    if _namespace(int(status["supervisor_pid"])) not in (0, processes.namespace()):
        findings.append(
            CheckResult(
                "daemon.namespace",
                "warn",
                "the daemon is in another mount namespace than this program",
                "its mounts are seen here where they are propagated; `imagefs mount` here needs a daemon of its own",
                "in Kubernetes that is as it should be (mountPropagation: Bidirectional)",
            )
        )
    if status.get("version") != stripefs.__version__:
        found = f"the daemon is version {status.get('version')}, this program {stripefs.__version__}"
        findings.append(_old("daemon", found, "systemctl reload imagefs"))
    else:
        findings.append(_age("daemon", int(status["worker_pid"]), "systemctl reload imagefs"))
    return findings


def snapshotter_findings(path: str, *, needed: bool) -> list[CheckResult]:
    """path: of the socket. needed: containerd is configured to use it."""
    remedy = "systemctl start imagefs-snapshotter (`imagefs install --enable`); its log says more"
    cost = "containerd starts no container by it" if needed else "none: containerd is not configured to use it"
    if (peer := speaks_http2(path)) is None:
        return [
            CheckResult("snapshotter.running", "fail" if needed else "warn", f"nothing answers at {path}", cost, remedy)
        ]
    findings = [CheckResult("snapshotter.running", "ok", f"the snapshotter answers at {path} (pid {peer})")]
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o007:
        findings.append(
            CheckResult(
                "snapshotter.socket",
                "fail",
                f"{path} has the mode {mode:04o}",
                "every local user can have root mount and remove images",
                f"chmod 0600 {path}",
            )
        )
    else:
        findings.append(CheckResult("snapshotter.socket", "ok", f"only its owner and group reach {path}"))
    findings.append(_age("snapshotter", peer, "systemctl restart imagefs-snapshotter"))
    return findings


def speaks_http2(path: str) -> int | None:
    """The process that answers at a socket as a gRPC server does; None where none does, or only listens."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(_ANSWERS_WITHIN)
            connection.connect(path)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            connection.sendall(_PREFACE)
            head = connection.recv(9, socket.MSG_WAITALL)
    except OSError:
        return None
    return int(struct.unpack("iII", credentials)[0]) if len(head) == 9 and head[3] == _SETTINGS else None


def runs_since(process: int) -> float:
    """When a process was started, in seconds since 1970; 0.0 where it is not to be seen."""
    began = processes.began(process)
    if not began:
        return 0.0
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted + began / os.sysconf("SC_CLK_TCK")


def installed_at() -> float:
    """When this version was installed, in seconds since 1970; 0.0 where that is not known."""
    try:
        files = metadata.distribution("bootseer").files or ()
        return max((Path(str(one.locate())).stat().st_mtime for one in files if one.name == "RECORD"), default=0.0)
    except (metadata.PackageNotFoundError, OSError):
        return 0.0


def _namespace(process: int) -> int:
    """The mount namespace of a process, 0 where that is not to be seen."""
    try:
        return os.stat(f"/proc/{process}/ns/mnt").st_ino
    except OSError:
        return 0


def _age(service: str, process: int, remedy: str) -> CheckResult:
    """Checks whether the service was started after the installed version was installed."""
    since = runs_since(process)
    if since and since < installed_at():
        return _old(service, f"the {service} was started before this version was installed", remedy)
    return CheckResult(f"{service}.version", "ok", f"the {service} runs what is installed")


def _old(service: str, found: str, remedy: str) -> CheckResult:
    return CheckResult(f"{service}.version", "warn", found, "it has the faults of its version", remedy)
