"""Capabilities and seccomp profiles of containers, from flags and documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from imagefs.errors import RunError
from imagefs.run.host import seccomp_profile
from imagefs.run.namespace import own_first_id
from imagefs.run.options import AUTO, IDS, parse_userns
from imagefs.run.privileges import ALL, CAPABILITIES, KNOWN, Profile, granted, parse_capabilities
from stripefs.errors import ConfigError


def test_capabilities_are_read_as_docker_reads_them() -> None:
    assert parse_capabilities("--cap-add", ["net_admin", "CAP_SYS_PTRACE,Kill", "all"]) == [
        "CAP_NET_ADMIN",
        "CAP_SYS_PTRACE",
        "CAP_KILL",
        ALL,
    ]
    assert parse_capabilities("--cap-add", ()) == []
    for text in ("NET_ADMINS", "", "KILL,", "CAP_ALL"):
        with pytest.raises(ConfigError, match="--cap-drop"):
            parse_capabilities("--cap-drop", [text])


def test_a_number_of_a_capability_is_its_place() -> None:
    """Numbers of include/uapi/linux/capability.h."""
    assert [KNOWN.index(f"CAP_{name}") for name in ("CHOWN", "SETPCAP", "SYS_ADMIN", "MKNOD", "BPF")] == [
        0,
        8,
        21,
        27,
        39,
    ]
    assert set(CAPABILITIES) < set(KNOWN)
    assert len(KNOWN) == 41


@pytest.mark.parametrize(
    ("added", "dropped", "expected"),
    [
        ([], [], CAPABILITIES),
        (["CAP_KILL"], [], CAPABILITIES),
        ([], ["CAP_KILL"], [name for name in CAPABILITIES if name != "CAP_KILL"]),
        (["CAP_BPF", "CAP_SYS_NICE"], [ALL], ["CAP_SYS_NICE", "CAP_BPF"]),
        (["CAP_KILL"], ["CAP_KILL", ALL], ["CAP_KILL"]),
        ([], [ALL], []),
        ([ALL], ["CAP_CHOWN"], [name for name in KNOWN if name not in ("CAP_CHOWN", "CAP_SYS_BOOT")]),
    ],
)
def test_what_is_granted(added: Sequence[str], dropped: Sequence[str], expected: Sequence[str]) -> None:
    held = [name for name in KNOWN if name != "CAP_SYS_BOOT"]
    assert granted(added, dropped, held) == list(expected)


def test_a_capability_that_the_caller_lacks() -> None:
    with pytest.raises(RunError, match="--cap-add SYS_BOOT"):
        granted(["CAP_KILL", "CAP_SYS_BOOT"], [], ["CAP_KILL"])


# Seccomp


def profile(document: object, kernel: tuple[int, int] = (6, 1), architecture: str = "arm64") -> Profile:
    return Profile(document, "--seccomp x", architecture, kernel)


def rules(capabilities: Sequence[str], *given: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    document = {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": list(given)}
    found: list[dict[str, Any]] = profile(document, **more).filter(capabilities).get("syscalls", [])
    return found


def rule(**condition: Any) -> dict[str, Any]:
    return {"names": ["bpf"], "action": "SCMP_ACT_ALLOW", "args": None, "comment": "why", **condition}


CHOSEN = [{"names": ["bpf"], "action": "SCMP_ACT_ALLOW"}]


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ({}, True),
        ({"includes": None, "excludes": {}}, True),
        ({"includes": {"caps": ["CAP_BPF"]}}, True),
        ({"includes": {"caps": ["CAP_BPF", "CAP_KILL"]}}, False),
        ({"excludes": {"caps": ["CAP_KILL"]}}, True),
        ({"excludes": {"caps": ["CAP_KILL", "CAP_BPF"]}}, False),
        ({"includes": {"arches": ["amd64", "arm64"]}}, True),
        ({"includes": {"arches": ["amd64"]}}, False),
        ({"excludes": {"arches": ["amd64"]}}, True),
        ({"excludes": {"arches": ["arm64"]}}, False),
        ({"includes": {"minKernel": "6.1"}}, True),
        ({"includes": {"minKernel": "5.19"}}, True),
        ({"includes": {"minKernel": "6.10"}}, False),
        ({"excludes": {"minKernel": "4.8"}}, False),
        ({"includes": {"caps": ["CAP_BPF"]}, "excludes": {"arches": ["arm64"]}}, False),
    ],
)
def test_rules_whose_conditions_hold(condition: dict[str, Any], holds: bool) -> None:
    assert rules(["CAP_BPF"], rule(**condition)) == (CHOSEN if holds else [])


def test_architectures_are_those_of_the_machine() -> None:
    arm = {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": ["SCMP_ARCH_ARM"]}
    document = {"defaultAction": "SCMP_ACT_ALLOW", "archMap": [{"architecture": "SCMP_ARCH_X86_64"}, arm]}
    assert profile(document).filter([])["architectures"] == ["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"]
    assert profile(document, architecture="amd64").filter([])["architectures"] == ["SCMP_ARCH_X86_64"]
    assert "architectures" not in profile(document, architecture="riscv64").filter([])


def test_arguments_and_error_numbers_are_kept() -> None:
    argument = {"index": 0, "value": 5, "op": "SCMP_CMP_MASKED_EQ"}
    given = {"name": "clone", "action": "SCMP_ACT_ERRNO", "errnoRet": 0, "args": [argument]}
    document = {"defaultAction": "SCMP_ACT_KILL", "defaultErrnoRet": 38, "flags": ["SECCOMP_FILTER_FLAG_LOG"]}
    assert profile({**document, "syscalls": [given]}).filter([]) == {
        **document,
        "syscalls": [
            {"names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": 0, "args": [{**argument, "valueTwo": 0}]}
        ],
    }


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"defaultAction": "ALLOW"},
        {"defaultAction": "SCMP_ACT_NOTIFY"},
        {"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/run/agent"},
        {"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_ARM"], "archMap": [{}]},
        {"defaultAction": "SCMP_ACT_ALLOW", "defaultErrnoRet": "1"},
        *(
            {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [one]}
            for one in (
                "bpf",
                {"names": [""], "action": "SCMP_ACT_ALLOW"},
                {"names": ["bpf"]},
                {"names": ["bpf"], "action": "SCMP_ACT_ERRNO", "errnoRet": True},
                {"names": ["bpf"], "action": "SCMP_ACT_ERRNO", "args": [{"op": "="}]},
                {"names": ["bpf"], "action": "SCMP_ACT_ERRNO", "args": [{"op": "SCMP_CMP_EQ", "value": -1}]},
                {"names": ["bpf"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": "CAP_BPF"}},
                {"names": ["bpf"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "4"}},
            )
        ),
    ],
)
def test_what_is_no_profile_is_refused(document: object) -> None:
    with pytest.raises(RunError, match=r"^--seccomp x"):
        profile(document).filter(["CAP_BPF"])


def test_a_profile_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    with pytest.raises(RunError, match="No such file or directory"):
        seccomp_profile(str(file))
    file.write_text("{")
    with pytest.raises(RunError, match="is no JSON"):
        seccomp_profile(str(file))


@pytest.mark.parametrize("capabilities", [CAPABILITIES, KNOWN, ()])
def test_no_call_of_the_own_profile_is_both_allowed_and_denied(capabilities: Sequence[str]) -> None:
    own = seccomp_profile("default")
    assert own is not None
    for architecture in ("amd64", "arm64", "s390x", "riscv64"):
        found = own._replace(architecture=architecture).filter(capabilities)["syscalls"]
        plain = [(name, one["action"]) for one in found if "args" not in one for name in one["names"]]
        names = [name for name, _ in plain]
        assert len(names) == len(set(names)), [name for name in names if names.count(name) > 1]
        argued = {name for one in found if "args" in one for name in one["names"]}
        assert argued.isdisjoint(names)


def test_the_own_profile_lets_nobody_make_namespaces_without_the_capability() -> None:
    own = seccomp_profile("default")
    assert own is not None
    for capabilities, action in ((CAPABILITIES, "SCMP_ACT_ERRNO"), (["CAP_SYS_ADMIN"], "SCMP_ACT_ALLOW")):
        found = own.filter(capabilities)["syscalls"]
        for name in ("unshare", "setns", "mount", "clone3"):
            assert [one["action"] for one in found if name in one["names"]] == [action], name


# User namespaces


def test_which_ids_a_user_namespace_has() -> None:
    assert parse_userns("host") == 0
    assert parse_userns("100000") == 100_000
    assert parse_userns("auto") == AUTO
    found = {own_first_id() for _ in range(50)}
    assert len(found) > 1
    assert all(one % IDS == 0 and 524_288 <= one <= 0x6FFF0000 for one in found)
    for text in ("", "0", "-1", "4294967295", "auto:65536", "1.5", "²"):
        with pytest.raises(ConfigError, match="--userns"):
            parse_userns(text)
