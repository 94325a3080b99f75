"""The system calls, capabilities and new privileges that the kernel refuses to a container."""

from __future__ import annotations

import json
import os
import sys
from errno import EINVAL, ENOSYS, EPERM
from pathlib import Path
from typing import Any

import pytest

from imagefs.run.options import Bind
from imagefs.run.privileges import ALL
from tests.integration.imagefs.run.material import both
from tests.tools.containers import Containers

pytestmark = [pytest.mark.mount, pytest.mark.root]

OWN = {
    "x86_64": {"bpf": 321, "clone": 56, "keyctl": 250, "perf_event_open": 298},
    "aarch64": {"bpf": 280, "clone": 220, "keyctl": 219, "perf_event_open": 241},
}

NUMBERS = {"open_tree": 428, "clone3": 435, "io_uring_setup": 425, "unknown": 9999, **OWN[os.uname().machine]}
"""Those of 424 and more are the same on all architectures."""

PROBE = f"""
import ctypes, json, multiprocessing, os, subprocess, threading

libc = ctypes.CDLL(None, use_errno=True)
numbers = {NUMBERS}


def answer(call):
    ctypes.set_errno(0)
    return ctypes.get_errno() if call() < 0 else 0


def in_child(flag):
    pid = os.fork()
    if pid == 0:
        os._exit(answer(lambda: libc.unshare(flag)))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def traced():
    pid = os.fork()
    if pid == 0:
        os._exit(answer(lambda: libc.ptrace(0, 0, 0, 0)))  # PTRACE_TRACEME
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def system(name, *arguments):
    return answer(lambda: libc.syscall(numbers[name], *arguments))


def square(number):
    return number * number


if __name__ == "__main__":
    found = {{
        "unshare a user namespace": in_child(0x10000000),
        "clone a user namespace": answer(lambda: libc.syscall(numbers["clone"], 0x10000011, 0, 0, 0, 0) or os._exit(0)),
        "mount": answer(lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)),
        "personality": answer(lambda: libc.personality(0x0040000)),  # ADDR_NO_RANDOMIZE
        "AF_VSOCK": answer(lambda: libc.socket(40, 1, 0)),
        "keyctl": system("keyctl", 0, -3, 0),
        "bpf": system("bpf", 0, 0, 0),
        "perf_event_open": system("perf_event_open", 0, 0, 0, 0, 0),
        "io_uring_setup": system("io_uring_setup", 1, 0),
        "open_tree": system("open_tree", -100, b"/", 0),
        "clone3": system("clone3", 0, 0),
        "unknown": system("unknown"),
        "ptrace": traced(),
    }}
    thread = threading.Thread(target=lambda: found.update(thread=0))
    thread.start()
    thread.join()
    with multiprocessing.Pool(2) as pool:
        found["pool"] = pool.map(square, range(4))
    found["subprocess"] = subprocess.run(["/bin/echo", "said"], capture_output=True, text=True).stdout
    print(json.dumps(found))
"""

WORKS = {"ptrace": 0, "thread": 0, "pool": [0, 1, 4, 9], "subprocess": "said\n"}


def libraries() -> list[Bind]:
    """The host's programs, which the image does not have, and what they need."""
    return [
        Bind(path, path, writable=False) for path in ("/usr", "/lib", "/lib64", sys.base_prefix) if os.path.isdir(path)
    ]


def probed(containers: Containers, folder: Path, **options: object) -> dict[str, object]:
    """The findings of a program in Python in a container; the interpreter is the host's."""
    (folder / "probe.py").write_text(PROBE)
    binds = [*libraries(), Bind(str(folder / "probe.py"), "/probe.py")]
    python = os.path.realpath(sys.executable)
    status, output, errors = containers.run(python, "/probe.py", binds=binds, writable=True, **options)
    assert status == 0, errors
    found: dict[str, object] = json.loads(output)
    return found


@both
def test_system_calls(containers: Containers, runtime: str, tmp_path: Path) -> None:
    """Most of these calls do something where there is no filter, so that it is the filter that refuses them."""
    assert probed(containers, tmp_path, runtime=runtime) == WORKS | {
        "unshare a user namespace": EPERM,
        "clone a user namespace": EPERM,
        "keyctl": EPERM,
        "io_uring_setup": EPERM,
        "open_tree": EPERM,
        "AF_VSOCK": EPERM,
        "personality": ENOSYS,
        "clone3": ENOSYS,
        "unknown": ENOSYS,
        "mount": EPERM,
        "bpf": EPERM,
        "perf_event_open": EPERM,
    }
    free = probed(containers, tmp_path, runtime=runtime, seccomp="unconfined")
    assert [free[name] for name in ("unshare a user namespace", "clone a user namespace", "open_tree")] == [0, 0, 0]
    assert free["clone3"] == EINVAL
    assert {EPERM, ENOSYS}.isdisjoint([free["keyctl"], free["io_uring_setup"], free["personality"]])
    assert free["unknown"] == ENOSYS
    # The filter also lets through the system calls of a capability that was added.
    admin = probed(containers, tmp_path, runtime=runtime, added=["CAP_SYS_ADMIN"])
    assert [admin[name] for name in ("unshare a user namespace", "mount", "open_tree", "keyctl")] == [0, 0, 0, EPERM]


@both
def test_a_profile_of_the_users_own(containers: Containers, runtime: str, tmp_path: Path) -> None:
    rule = {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 28}
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]}))
    script = "mkdir /tmp/a 2>&1 || grep Seccomp: /proc/self/status"
    status, output, errors = containers.run(
        "busybox", "sh", "-c", script.replace("grep", "busybox grep"), runtime=runtime, seccomp=str(profile)
    )
    assert (status, output) == (0, "mkdir: can't create directory '/tmp/a': No space left on device\nSeccomp:\t2\n"), (
        errors
    )


@both
def test_capabilities(containers: Containers, runtime: str) -> None:
    usual = "00000000a80425fb"
    own = status_of(Path("/proc/self/status").read_text())["CapBnd"]
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"user": "root"}, usual, usual),
        ({"user": "ann"}, "0" * 16, usual),
        ({"added": ["CAP_NET_ADMIN"], "dropped": ["CAP_MKNOD"]}, "00000000a00435fb", "00000000a00435fb"),
        ({"added": ["CAP_KILL"], "dropped": [ALL]}, "0000000000000020", "0000000000000020"),
        ({"added": [ALL]}, own, own),
    ]
    for options, effective, bounding in cases:
        status, output, errors = containers.run("cat", "/proc/self/status", runtime=runtime, **options)
        assert status == 0, errors
        known = status_of(output)
        assert (known["CapEff"], known["CapBnd"], known["NoNewPrivs"]) == (effective, bounding, "0")
        assert (known["SigBlk"], known["SigIgn"]) == ("0" * 16, "0" * 16)


def status_of(text: str) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in text.splitlines())


@both
def test_no_new_privileges(containers: Containers, runtime: str) -> None:
    script = "busybox cp /usr/bin/id /srv/id && chmod 4755 /srv/id && busybox su ann -s /bin/sh -c '/srv/id -u'"
    for wanted, seen in ((False, "0\n"), (True, "1234\n")):
        status, output, errors = containers.run(
            "sh", "-c", script, binds=libraries(), runtime=runtime, writable=True, no_new_privileges=wanted
        )
        assert (status, output) == (0, seen), errors
