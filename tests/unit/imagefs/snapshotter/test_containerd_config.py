"""The block for containerd's configuration, and the command that prints it."""

from __future__ import annotations

import subprocess
import tomllib
from typing import Any
from unittest.mock import Mock

import pytest

from imagefs.cli import services
from imagefs.cli.main import PROGRAM
from imagefs.snapshotter.containerd_config import (
    IMAGES_PLUGIN,
    RUNTIME_PLUGIN,
    TRANSFER_PLUGIN,
    V1_CRI_PLUGIN,
    Wanted,
    containerd_config,
    parse_version,
)
from tests.contract.commands import said

WANTED = Wanted(socket="/run/a b/s.sock", root='/var/lib/with"quote', platform="linux/arm64")


def block(major: int, wanted: Wanted = WANTED) -> dict[str, Any]:
    return tomllib.loads(containerd_config(major, wanted))


def test_of_containerd_2_cri_and_the_transfer_service_use_it() -> None:
    made = block(2)
    images = made["plugins"][IMAGES_PLUGIN]
    assert images == {"snapshotter": "imagefs", "disable_snapshot_annotations": False, "discard_unpacked_layers": False}
    assert made["proxy_plugins"]["imagefs"]["exports"]["enable_remote_snapshot_annotations"] == "true"
    unpack = made["plugins"][TRANSFER_PLUGIN]["unpack_config"]
    assert [one["snapshotter"] for one in unpack] == ["imagefs", "overlayfs"]
    assert {one["platform"] for one in unpack} == {"linux/arm64"}


def test_with_a_runtime_class_only_its_handler_uses_it() -> None:
    wanted = WANTED._replace(runtime_class=True, systemd_cgroup=False)
    cri = block(1, wanted)["plugins"][V1_CRI_PLUGIN]["containerd"]
    assert "snapshotter" not in cri
    assert cri["runtimes"]["imagefs"]["snapshotter"] == "imagefs"
    assert "snapshotter" not in cri["runtimes"]["runc"], "the default handler, which 1.x forgets where others are given"
    plugin = block(2, wanted)["proxy_plugins"]["imagefs"]
    assert (plugin["address"], plugin["exports"]["root"]) == (WANTED.socket, WANTED.root)
    plugins = block(2, wanted)["plugins"]
    assert "snapshotter" not in plugins[IMAGES_PLUGIN]
    assert plugins[IMAGES_PLUGIN]["runtime_platforms"]["imagefs"]["snapshotter"] == "imagefs"
    handler = plugins[RUNTIME_PLUGIN]["containerd"]["runtimes"]["imagefs"]
    assert handler["snapshotter"] == "imagefs"
    assert handler["options"] == {"SystemdCgroup": False}


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3", (1, 6, 20)),
        ("containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7193e4e490e9fbdc236c0e811ccaba3376", (2, 1, 4)),
        ("containerd containerd.io 1.7.27 05044ec0a9a75232cad458027ca83437aae3f4da", (1, 7, 27)),
        ("no version at all", None),
    ],
)
def test_versions_as_containerd_prints_them(printed: str, version: tuple[int, int, int] | None) -> None:
    assert parse_version(printed) == version


def test_the_command_asks_containerd_for_its_version(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = "containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b"
    run = Mock(return_value=subprocess.CompletedProcess([], 0, printed, ""))
    monkeypatch.setattr(services.subprocess, "run", run)
    code, out, err = said(PROGRAM, capsys, ["snapshotter", "config", "--socket", "/run/x.sock"])
    assert (code, err) == (0, "")
    assert run.call_args.args == (["containerd", "--version"],)
    made = tomllib.loads(out)
    assert made["version"] == 3
    assert made["proxy_plugins"]["imagefs"]["address"] == "/run/x.sock"


def test_without_containerd_the_command_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    code, out, err = said(PROGRAM, capsys, ["snapshotter", "config"])
    assert (code, out) == (2, "")
    assert "--containerd 1 or --containerd 2" in err
    assert tomllib.loads(said(PROGRAM, capsys, ["snapshotter", "config", "--containerd", "1"])[1])["version"] == 2
