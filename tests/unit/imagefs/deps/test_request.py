"""A key, or a refusal with its reasons, from a user's request, the host's facts and the files."""

from __future__ import annotations

from typing import Any

import pytest

from imagefs.deps.key import (
    Facts,
    Inputs,
    Key,
    OpenEnd,
    Python,
    Request,
    Target,
    diff,
    key_of,
    refusal_of,
    validate_request,
)
from imagefs.deps.keybuilder import refusal_of_lock
from imagefs.deps.lock import Lock, LockedRequirement
from stripefs.errors import ConfigError

REQUEST = Request([Target("/opt/deps", 0, 0)], ["pip", "install", "-r", "requirements.txt"], "/job")
PYTHON = Python(
    "/usr/bin/python3", "/usr", "cpython", "3.11.2", "cpython-311-x86_64-linux-gnu", {"sys_platform": "linux"}
)
FACTS = Facts("Linux", "x86_64", "x86-64-v3", ("glibc", "2.36"), PYTHON, {"pip": "24.0"})
INPUTS = Inputs(["pip", "install", "-r", "requirements.txt"], {"requirements.txt": "ab" * 32}, {}, {}, {}, [])


LOCK = Lock.of([LockedRequirement("six", "1.16", "wheel", ["sha256:" + "ab" * 32])], "pip 24.0")


def key(request: Request = REQUEST, facts: Facts = FACTS) -> Key:
    return key_of(request, facts, INPUTS, LOCK)


def of_python(**change: str) -> Key:
    return key(facts=FACTS._replace(python=PYTHON._replace(**change)))


@pytest.mark.parametrize(
    ("other", "where"),
    [
        (key(REQUEST._replace(namespace="team")), "namespace"),
        (key(REQUEST._replace(base_image="cd" * 32)), "base_image"),
        (key(REQUEST._replace(cuda="12.4")), "accelerator.cuda"),
        (key(REQUEST._replace(driver="550")), "accelerator.driver"),
        (key(REQUEST._replace(salt="1")), "salt"),
        (key(REQUEST._replace(epoch="2026-11")), "epoch"),
        (key(REQUEST._replace(allow_unpinned=True)), "unpinned"),
        (key(REQUEST._replace(targets=[Target("/opt/deps", 0, 7)])), "targets.1"),
        (key(REQUEST._replace(targets=[Target("/opt/deps", 0, 0, 0o077)])), "targets.1"),
        (key(facts=FACTS._replace(os="FreeBSD")), "system.os"),
        (key(facts=FACTS._replace(architecture="aarch64")), "system.architecture"),
        (key(facts=FACTS._replace(cpu_level="x86-64-v2")), "system.cpu_level"),
        (key(facts=FACTS._replace(libc=("musl", "2.36"))), "libc.name"),
        (key(facts=FACTS._replace(installers={"pip": "24.1"})), "installers.pip"),
        (of_python(executable="/opt/python"), "python.executable"),
        (of_python(implementation="other"), "python.implementation"),
        (of_python(version="3.11.3"), "python.version"),
        (of_python(soabi="cpython-311d-x86_64-linux-gnu"), "python.soabi"),
    ],
)
def test_what_is_asked_for_and_what_the_host_is_are_in_the_key(other: Key, where: str) -> None:
    assert list(diff(key(), other).changed) == [where]


def test_what_a_marker_may_say_is_not_in_the_key() -> None:
    other = PYTHON._replace(markers={"platform_release": "6.1"}, prefix="/elsewhere", sites=["/elsewhere"])
    assert key(facts=FACTS._replace(python=other)) == key()
    assert key(facts=FACTS._replace(python=None)).components["python"] is None


def test_the_order_of_targets_counts() -> None:
    one, other = Target("/a", 0, 0), Target("/b", 0, 0)
    assert key(REQUEST._replace(targets=[one, other])) != key(REQUEST._replace(targets=[other, one]))


OPEN = Inputs(
    INPUTS.command,
    INPUTS.files,
    {},
    {},
    {},
    [OpenEnd("requirements.txt:3", "numpy>=1", "no one version"), OpenEnd("requirements.txt:9", "x", "y")],
)


def test_open_ends_are_refused_with_the_line_they_are_on() -> None:
    found = refusal_of(REQUEST, OPEN)
    assert found is not None
    assert found.reason.startswith("requirements.txt:3: numpy>=1: no one version (and 1 more); ")
    assert found.open_ends == OPEN.open_ends


def test_what_a_resolver_closes_is_refused_by_the_strict_alone() -> None:
    loose = INPUTS._replace(unpinned=OPEN.open_ends)
    strict = REQUEST._replace(strict=True)
    assert refusal_of(REQUEST, loose) is refusal_of(strict, INPUTS) is None
    assert refusal_of(strict, loose) is not None
    assert refusal_of(strict._replace(epoch="1"), loose) is None
    assert refusal_of_lock(REQUEST, LOCK, ()) is None
    assert refusal_of_lock(strict, LOCK, ["six"]) is None
    found = refusal_of_lock(strict, LOCK, ["numpy"])
    assert found is not None
    assert "six==1.16" in found.reason


def test_a_file_without_a_digest_is_refused() -> None:
    found = refusal_of_lock(REQUEST, Lock.of([LockedRequirement("six", "1", "wheel")]), ["six"])
    assert found is not None
    assert "no digest of its file is known" in found.reason


def test_the_lock_is_in_the_key_and_what_resolved_it_is_not() -> None:
    (one,) = LOCK.requirements
    assert key_of(REQUEST, FACTS, INPUTS, LOCK._replace(tool="uv 1")) == key()
    other = Lock.of([one._replace(digests=["sha256:" + "cd" * 32])])
    assert list(diff(key(), key_of(REQUEST, FACTS, INPUTS, other)).changed) == ["lock.1.4"]


@pytest.mark.parametrize(
    "change",
    [
        {"command": []},
        {"targets": [Target("opt", 0, 0)]},
        {"targets": [Target("/opt/../etc", 0, 0)]},
        {"targets": [Target("/opt", 0, 0), Target("/opt", 1, 1)]},
        {"env": ["A=1"]},
        {"env": ["HF_TOKEN"]},
        {"env": ["DB_PASSWORD"]},
    ],
)
def test_what_no_key_can_be_made_of_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        validate_request(REQUEST._replace(**change))


def test_ordinary_variables_are_no_secrets() -> None:
    request = REQUEST._replace(env=["TORCH_CUDA_ARCH_LIST", "MAX_JOBS", "CC", "AUTHOR"])
    assert validate_request(request) is request
